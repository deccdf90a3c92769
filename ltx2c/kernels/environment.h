/* The thread's floating-point environment: a block runs to nearest and keeps denormals, whatever the caller had set. */
#ifndef LTX2C_ENVIRONMENT_H
#define LTX2C_ENVIRONMENT_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

typedef unsigned ltx2c_environment;

static inline ltx2c_environment ltx2c_enter_environment(void) {
    ltx2c_environment saved = _mm_getcsr();
    _mm_setcsr(0x1f80); /* exceptions masked, to nearest, FTZ and DAZ off */
    return saved;
}

static inline void ltx2c_leave_environment(ltx2c_environment saved) { _mm_setcsr(saved); }

static inline void ltx2c_pause(void) { _mm_pause(); }

#elif defined(__aarch64__)

typedef uint64_t ltx2c_environment;

static inline void ltx2c_leave_environment(ltx2c_environment saved) {
    __asm__ volatile("msr fpcr, %0" : : "r"(saved) : "memory");
}

static inline ltx2c_environment ltx2c_enter_environment(void) {
    ltx2c_environment saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    ltx2c_leave_environment(0); /* to nearest, no flushing, NaNs propagate */
    return saved;
}

static inline void ltx2c_pause(void) { __asm__ volatile("yield"); }

#else /* the language's default environment is the right one */

typedef int ltx2c_environment;

static inline ltx2c_environment ltx2c_enter_environment(void) { return 0; }
static inline void ltx2c_leave_environment(ltx2c_environment saved) { (void)saved; }
static inline void ltx2c_pause(void) {}

#endif

/* A strength as the contract has it: to nearest, and with denormals, whatever the caller's environment does. */
static inline float ltx2c_round_strength(double strength) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    volatile double given = strength; /* volatile: the compiler may not move the rounding out of the environment */
    volatile float rounded = (float)given;
    ltx2c_leave_environment(saved);
    return rounded;
}

#endif
