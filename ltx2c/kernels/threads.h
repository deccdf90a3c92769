/* Threads that the system will give, and when to look whether the work is still wanted.
 *
 * GCC's OpenMP runtime ends the whole process when it cannot start a thread that it was asked for. So before it has to
 * start any, as many are started here, all alive at the same time, and it is asked for no more than there were.
 */
#ifndef LTX2C_THREADS_H
#define LTX2C_THREADS_H

#include <stdint.h>
#include <time.h>

/* ---- How many ----------------------------------------------------------------------------------------------------- */

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Each thread that opens parallel regions has a pool of its own; it shrinks to the last region's threads. */
static __thread int ltx2c_pool_threads;
static __thread unsigned ltx2c_pool_forks;
static unsigned ltx2c_forks; /* each dissolves all pools (fork.h) */

typedef struct {
    pthread_t thread;
    pthread_mutex_t *gate;
    long number;
} ltx2c_trial;

static void *ltx2c_try_thread(void *given) {
    ltx2c_trial *trial = (ltx2c_trial *)given;
#ifdef SYS_gettid
    __atomic_store_n(&trial->number, syscall(SYS_gettid), __ATOMIC_RELEASE);
#endif
    pthread_mutex_lock(trial->gate);
    pthread_mutex_unlock(trial->gate);
    return NULL;
}

/* Joins a trial, and waits until the system counts its thread no more: that is a little later. */
static void ltx2c_end_trial(const ltx2c_trial *trial) {
    pthread_join(trial->thread, NULL);
#if defined(SYS_gettid) && defined(SYS_tgkill)
    while (!syscall(SYS_tgkill, (long)getpid(), trial->number, 0)) sched_yield();
#endif
}

/* Up to `wanted` threads, the caller's own among them, that a parallel region may have now. */
static int ltx2c_obtainable_threads(int wanted) {
    const unsigned forks = __atomic_load_n(&ltx2c_forks, __ATOMIC_RELAXED);
    if (ltx2c_pool_forks != forks) ltx2c_pool_threads = 0;
    ltx2c_pool_forks = forks;
    if (wanted > 1 && wanted > ltx2c_pool_threads) {
        pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
        ltx2c_trial *trials = (ltx2c_trial *)malloc((size_t)wanted * sizeof *trials);
        int started = 0;
        pthread_mutex_lock(&gate);
        while (trials && started < wanted - 1) {
            trials[started].gate = &gate;
            if (pthread_create(&trials[started].thread, NULL, ltx2c_try_thread, &trials[started])) break;
            started++;
        }
        pthread_mutex_unlock(&gate);
        for (int t = 0; t < started; t++) ltx2c_end_trial(&trials[t]);
        free(trials);
        if (started < wanted - 1) wanted = started > 1 ? started : 1; /* one to spare: the runtime needs memory, too */
    }
    if (wanted > 1) ltx2c_pool_threads = wanted; /* a region of one leaves the pool alone */
    return wanted;
}

static inline int ltx2c_processors(void) { return omp_get_num_procs(); }
#else
static inline int ltx2c_processors(void) { return 0; }

static inline int ltx2c_obtainable_threads(int wanted) {
    (void)wanted;
    return 1;
}
#endif

/* ---- Still wanted? ------------------------------------------------------------------------------------------------ */

enum { LTX2C_LOOK_NANOSECONDS = 50000000 };

static inline int ltx2c_is_asked(const int *asked) { return __atomic_load_n(asked, __ATOMIC_RELAXED); }

static inline void ltx2c_ask(int *asked) { __atomic_store_n(asked, 1, __ATOMIC_RELAXED); }

/* Whether 50 ms have passed since the last time this said so, or since *last was 0. */
static inline int ltx2c_is_time(uint64_t *last) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const uint64_t at = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    if (*last && at - *last < LTX2C_LOOK_NANOSECONDS) return 0;
    const int first = !*last;
    *last = at;
    return !first;
}

#endif
