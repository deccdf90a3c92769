/* What the gate's floor is measured against: the loop that ltx2c replaces, and what the machine can do at most.
 *
 * Built by gate_floor.py without vectorisation or contraction, so that the loop stays what its author wrote. Nothing here
 * comes from the package: a floor that moved with the kernels would hold nothing up. */
#include <stdint.h>
#include <string.h>

static float from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_bf16(float value) { /* to nearest, ties to even; the gate's values are finite */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* W[out][in] += s * B[out][rank] A[rank][in], element by element, A read down its columns: 0.5 GFLOP/s. */
void scalar_fuse(uint16_t *w, const uint16_t *a, const uint16_t *b, float strength, long out, long rank, long in) {
    for (long o = 0; o < out; o++)
        for (long i = 0; i < in; i++) {
            float acc = 0.0f;
            for (long k = 0; k < rank; k++) {
                float scaled = from_bf16(to_bf16(from_bf16(b[o * rank + k]) * strength));
                acc += scaled * from_bf16(a[k * in + i]);
            }
            w[o * in + i] = to_bf16(from_bf16(to_bf16(acc)) + from_bf16(w[o * in + i]));
        }
}

/* One thread's multiply-adds from registers to registers, as many as the units take. Twelve independent sums are more than
 * latency times units; each is a variable of its own, which an empty asm after every step keeps in a register. */
#define ROUNDS 10000000L
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f,avx512bf16"))) static double vdpbf16ps(void) {
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80);
#define ZERO(c) __m512 sum##c = _mm512_setzero_ps();
#define STEP(c) sum##c = _mm512_dpbf16_ps(sum##c, x, x); __asm__ volatile("" : "+v"(sum##c));
    EACH(ZERO)
    for (long r = 0; r < ROUNDS; r++) { EACH(STEP) }
#undef STEP
    return (double)ROUNDS * 12 * 64;
}

__attribute__((target("avx512f"))) static double fma_avx512(void) {
    __m512 x = _mm512_set1_ps(1.0f);
#define STEP(c) sum##c = _mm512_fmadd_ps(x, x, sum##c); __asm__ volatile("" : "+v"(sum##c));
    EACH(ZERO)
    for (long r = 0; r < ROUNDS; r++) { EACH(STEP) }
#undef STEP
#undef ZERO
    return (double)ROUNDS * 12 * 32;
}

__attribute__((target("avx2,fma"))) static double fma_avx2(void) {
    __m256 x = _mm256_set1_ps(1.0f);
#define ZERO(c) __m256 sum##c = _mm256_setzero_ps();
#define STEP(c) sum##c = _mm256_fmadd_ps(x, x, sum##c); __asm__ volatile("" : "+x"(sum##c));
    EACH(ZERO)
    for (long r = 0; r < ROUNDS; r++) { EACH(STEP) }
    return (double)ROUNDS * 12 * 16;
}

double peak(const char **name) {
    if (__builtin_cpu_supports("avx512bf16")) return *name = "VDPBF16PS, 512 bits", vdpbf16ps();
    if (__builtin_cpu_supports("avx512f")) return *name = "f32 FMA, 512 bits", fma_avx512();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return *name = "f32 FMA, 256 bits", fma_avx2();
    return *name = "none known", 0;
}

#elif defined(__aarch64__)
#include <arm_neon.h>

double peak(const char **name) {
    float32x4_t x = vdupq_n_f32(1.0f);
#define ZERO(c) float32x4_t sum##c = vdupq_n_f32(0.0f);
#define STEP(c) sum##c = vfmaq_f32(sum##c, x, x); __asm__ volatile("" : "+w"(sum##c));
    EACH(ZERO)
    for (long r = 0; r < ROUNDS; r++) { EACH(STEP) }
    *name = "f32 FMA, 128 bits";
    return (double)ROUNDS * 12 * 8;
}

#else
double peak(const char **name) { return *name = "none known", 0; }
#endif
