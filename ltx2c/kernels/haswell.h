/* haswell: AVX2 with FMA and F16C.
 *
 * Register tile: 6 rows by a panel of 16 columns: 12 accumulators, 2 words of A, a broadcast of B: 15 of 16 registers,
 * and 12 chains cover two units of latency 4 or 5. A panel of rank 450 takes 28 kB: it stays in L1 while rows pass by.
 *
 * A panel holds the 8 even columns and then the 8 odd ones, the order in which a vector of 16 bf16 splits into two of
 * f32 by one shift and one mask.
 */
#if defined(__x86_64__) && !defined(LTX2C_WITHOUT_HASWELL)
#ifdef LTX2C_LISTING
&ltx2c_haswell,
#elif !defined(LTX2C_HASWELL_H)
#define LTX2C_HASWELL_H

#include <cpuid.h>
#include <immintrin.h>

#include "core.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

enum {
    ltx2c_haswell_mr = 6,
    ltx2c_haswell_lanes = 8,
    ltx2c_haswell_vectors = 2,
    LTX2C_HASWELL_PANEL = 16,
    LTX2C_HASWELL_UNIT = (int)LTX2C_UNIT / LTX2C_HASWELL_PANEL /* panels */
};

typedef __m256 ltx2c_haswell_vector;
typedef __m256i ltx2c_haswell_halves;
typedef __m256 ltx2c_haswell_tile[ltx2c_haswell_mr][ltx2c_haswell_vectors];

/* Clang's __builtin_cpu_supports() does not know this one. That the system keeps AVX registers is told by AVX2's test. */
static int ltx2c_haswell_has_f16c(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static const char *ltx2c_haswell_unsupported(void) {
    int runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && ltx2c_haswell_has_f16c();
    return runs ? NULL : "this CPU lacks AVX2, FMA or F16C";
}

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

/* The even bf16 of a vector, as f32 bits; the odd ones. */
LTX2C_INLINE __m256i ltx2c_haswell_even(__m256i halves) { return _mm256_slli_epi32(halves, 16); }

LTX2C_INLINE __m256i ltx2c_haswell_odd(__m256i halves) {
    return _mm256_and_si256(halves, _mm256_set1_epi32((int)0xffff0000));
}

/* Bounds of bf16 magnitudes; a word of f32 bits counts as a bf16 and a zero, and zeros are hidden. */
LTX2C_INLINE void ltx2c_haswell_bound(__m256i halves, __m256i *low, __m256i *high) {
    __m256i magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7fff));
    *low = _mm256_min_epu16(*low, _mm256_sub_epi16(magnitude, _mm256_set1_epi16(1)));
    *high = _mm256_max_epu16(*high, magnitude);
}

static void ltx2c_haswell_pack_a(uint32_t *to, size_t panel_words, const char *row, const char *next, size_t panels,
                                 ltx2c_bounds *bounds) {
    (void)next;
    __m256i low = _mm256_load_si256((__m256i *)bounds->low), high = _mm256_load_si256((__m256i *)bounds->high);
    for (size_t p = 0; p < panels; p++, to += panel_words, row += 2 * LTX2C_HASWELL_PANEL) {
        __m256i values = _mm256_loadu_si256((const __m256i *)row);
        ltx2c_haswell_bound(values, &low, &high);
        _mm256_store_si256((__m256i *)to, ltx2c_haswell_even(values));
        _mm256_store_si256((__m256i *)(to + 8), ltx2c_haswell_odd(values));
    }
    _mm256_store_si256((__m256i *)bounds->low, low);
    _mm256_store_si256((__m256i *)bounds->high, high);
}

/* f32 bits rounded to bf16 in their upper half; the lower half holds rubbish. NaNs must have their low half clear,
 * which holds for whatever arithmetic makes of bf16 values: payloads come from an operand or are the default. */
LTX2C_INLINE __m256i ltx2c_haswell_round_up(__m256 values) {
    __m256i bits = _mm256_castps_si256(values);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

LTX2C_INLINE __m256 ltx2c_haswell_round(__m256 values) {
    return _mm256_castsi256_ps(ltx2c_haswell_odd(ltx2c_haswell_round_up(values)));
}

static void ltx2c_haswell_pack_b(uint32_t *to, const char *row, size_t count, const float *strength,
                                 ltx2c_bounds *bounds) {
    __m256i low = _mm256_load_si256((__m256i *)bounds->low), high = _mm256_load_si256((__m256i *)bounds->high);
    for (size_t k = 0; k < count; k += 8) {
        __m256i half = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(row + 2 * k)));
        __m256 values = _mm256_castsi256_ps(_mm256_slli_epi32(half, 16));
        if (strength) values = ltx2c_haswell_round(_mm256_mul_ps(values, _mm256_set1_ps(*strength)));
        ltx2c_haswell_bound(_mm256_castps_si256(values), &low, &high);
        _mm256_store_ps((float *)(to + k), values);
    }
    _mm256_store_si256((__m256i *)bounds->low, low);
    _mm256_store_si256((__m256i *)bounds->high, high);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* sum += b * a, one k; rounded once when `fused`, twice otherwise. */
LTX2C_INLINE __m256 ltx2c_haswell_step(const int fused, __m256 b, __m256 a, __m256 sum) {
    return fused ? _mm256_fmadd_ps(b, a, sum) : _mm256_add_ps(sum, _mm256_mul_ps(b, a));
}

LTX2C_INLINE void ltx2c_haswell_product(const int rows, const int fused, ltx2c_haswell_tile sum, const uint32_t *a,
                                        const ltx2c_factors *f) {
    const uint32_t *b = f->b;
    const size_t b_stride = f->b_stride;
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (size_t k = 0; k < f->depth; k++, a += LTX2C_HASWELL_PANEL) {
        const __m256 even = _mm256_load_ps((const float *)a), odd = _mm256_load_ps((const float *)(a + 8));
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) {
            const __m256 row = _mm256_broadcast_ss((const float *)(b + (size_t)r * b_stride + k));
            sum[r][0] = ltx2c_haswell_step(fused, row, even, sum[r][0]);
            sum[r][1] = ltx2c_haswell_step(fused, row, odd, sum[r][1]);
        }
    }
}

/* One term's product for panel p. Under F32 every step is fused. */
LTX2C_INLINE void ltx2c_haswell_term(const int rows, const int f32, const ltx2c_factors *f, size_t p,
                                     ltx2c_haswell_tile sum) {
    const uint32_t *a = f->a + p * f->depth * LTX2C_HASWELL_PANEL;
    if (f32 || ltx2c_exact_mode(f->a_range[p / LTX2C_HASWELL_UNIT], f->b_range) != LTX2C_MULADD)
        ltx2c_haswell_product(rows, 1, sum, a, f);
    else
        ltx2c_haswell_product(rows, 0, sum, a, f);
}

/* ---- Vectors, for tile.h ----------------------------------------------------------------------------------------- */

LTX2C_INLINE __m256 ltx2c_haswell_splat(float value) { return _mm256_set1_ps(value); }
LTX2C_INLINE __m256 ltx2c_haswell_add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
LTX2C_INLINE __m256 ltx2c_haswell_mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
LTX2C_INLINE __m256 ltx2c_haswell_load(const char *from) { return _mm256_loadu_ps((const float *)from); }
LTX2C_INLINE void ltx2c_haswell_store(char *to, __m256 v) { _mm256_storeu_ps((float *)to, v); }
LTX2C_INLINE __m256 ltx2c_haswell_kept(const float *from) { return _mm256_load_ps(from); }
LTX2C_INLINE void ltx2c_haswell_keep(float *to, __m256 v) { _mm256_store_ps(to, v); }

LTX2C_INLINE __m256 ltx2c_haswell_load_f16(const char *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}

LTX2C_INLINE void ltx2c_haswell_store_f16(char *to, __m256 v) {
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

LTX2C_INLINE void ltx2c_haswell_split(__m256 left, __m256 right, __m256 *even, __m256 *odd) {
    const __m256 evens = _mm256_shuffle_ps(left, right, 0x88), odds = _mm256_shuffle_ps(left, right, 0xdd);
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(evens), 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odds), 0xd8));
}

LTX2C_INLINE void ltx2c_haswell_join(__m256 even, __m256 odd, __m256 *left, __m256 *right) {
    const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    *left = _mm256_permute2f128_ps(low, high, 0x20);
    *right = _mm256_permute2f128_ps(low, high, 0x31);
}

LTX2C_INLINE void ltx2c_haswell_get_bf16(const char *from, __m256 *even, __m256 *odd) {
    const __m256i halves = _mm256_loadu_si256((const __m256i *)from);
    *even = _mm256_castsi256_ps(ltx2c_haswell_even(halves));
    *odd = _mm256_castsi256_ps(ltx2c_haswell_odd(halves));
}

LTX2C_INLINE __m256i ltx2c_haswell_to_bf16(__m256 even, __m256 odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(ltx2c_haswell_round_up(even), 16), ltx2c_haswell_round_up(odd), 0xaa);
}

LTX2C_INLINE void ltx2c_haswell_store_bf16(char *to, __m256i halves) { _mm256_storeu_si256((__m256i *)to, halves); }

LTX2C_INLINE int ltx2c_haswell_special_bf16(__m256i halves) {
    const __m256i top = _mm256_set1_epi16(0x7f80);
    const __m256i special = _mm256_cmpeq_epi16(_mm256_and_si256(halves, top), top);
    return !_mm256_testz_si256(special, special);
}

LTX2C_INLINE __m256 ltx2c_haswell_canonical(__m256 v) {
    return _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

LTX2C_INLINE int ltx2c_haswell_any_at_least(__m256 even, __m256 odd, uint32_t limit) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i most = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(even), magnitude),
                                          _mm256_and_si256(_mm256_castps_si256(odd), magnitude));
    const __m256i reached = _mm256_cmpgt_epi32(most, _mm256_set1_epi32((int)limit - 1));
    return !_mm256_testz_si256(reached, reached);
}

/* Asks for the first tile's weights, which come from memory while its product runs. */
LTX2C_INLINE void ltx2c_haswell_prefetch(const int rows, const char *weight, ptrdiff_t stride, size_t panel_bytes) {
    (void)panel_bytes;
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) _mm_prefetch(weight + r * stride, _MM_HINT_T0);
}

#define LTX2C_VECTOR(name) ltx2c_haswell_##name
#define LTX2C_TILE(name) ltx2c_haswell_##name
#include "tile.h"

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

static float ltx2c_haswell_peak(float seed) {
    const __m256 value = _mm256_set1_ps(seed);
    __m256 sum[12];
    LTX2C_UNROLL
    for (int v = 0; v < 12; v++) sum[v] = _mm256_set1_ps(seed * (float)v);
    for (size_t k = 0; k < LTX2C_PEAK_STEPS; k++) {
        LTX2C_UNROLL
        for (int v = 0; v < 12; v++) sum[v] = _mm256_fmadd_ps(value, value, sum[v]);
    }
    __m256 total = _mm256_setzero_ps();
    LTX2C_UNROLL
    for (int v = 0; v < 12; v++) total = _mm256_add_ps(total, sum[v]);
    return _mm256_cvtss_f32(total);
}

static const ltx2c_kernel ltx2c_haswell = {
    .name = "haswell",
    .unsupported = ltx2c_haswell_unsupported,
    .panel = LTX2C_HASWELL_PANEL,
    .rows = ltx2c_haswell_mr,
    .pair = 1,
    .blocking = {.panel_bytes = 24 << 10, .b_bytes = 256 << 10, .rows = 252, .stream_rows = 60, .columns = 1024},
    .pack_a = ltx2c_haswell_pack_a,
    .pack_a_wide = ltx2c_haswell_pack_a_wide,
    .pack_b_wide = ltx2c_haswell_pack_b_wide,
    .pack_b = ltx2c_haswell_pack_b,
    .strip = ltx2c_haswell_strip_by_rows,
    .peak_macs = (uint64_t)LTX2C_PEAK_STEPS * 12 * 8,
    .peak = ltx2c_haswell_peak,
};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
#endif
