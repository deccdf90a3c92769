/* haswell: AVX2 with FMA and F16C.
 *
 * Register tile: 6 rows by a panel of 16 columns: 12 accumulators, 2 words of A, a broadcast of B: 15 of 16 registers,
 * and 12 chains cover two units of latency 4 or 5. A panel of rank 450 takes 28 kB: it stays in L1 while rows pass by.
 *
 * A panel holds the 8 even columns and then the 8 odd ones, the order in which a vector of 16 bf16 splits into two of
 * f32 by one shift and one mask.
 *
 * May assume: A 64-byte aligned and padded with zeros to whole panels, B's rows padded with zeros, weight and out
 * readable and writable for whole panels (the driver stages what is not), round to nearest, no flushing in MXCSR.
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
    LTX2C_HASWELL_ROWS = 6,
    LTX2C_HASWELL_PANEL = 16,
    LTX2C_HASWELL_UNIT = LTX2C_UNIT / LTX2C_HASWELL_PANEL /* panels */
};

/* Clang's __builtin_cpu_supports() does not know this one. That the system keeps AVX registers is told by AVX2's test. */
static int ltx2c_haswell_has_f16c(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static const char *ltx2c_haswell_obstacle(void) {
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

static void ltx2c_haswell_pack_b(uint32_t *to, const char *row, size_t count, const float *scale,
                                 ltx2c_bounds *bounds) {
    __m256i low = _mm256_load_si256((__m256i *)bounds->low), high = _mm256_load_si256((__m256i *)bounds->high);
    for (size_t k = 0; k < count; k += 8) {
        __m256i half = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(row + 2 * k)));
        __m256 values = _mm256_castsi256_ps(_mm256_slli_epi32(half, 16));
        if (scale) values = ltx2c_haswell_round(_mm256_mul_ps(values, _mm256_set1_ps(*scale)));
        ltx2c_haswell_bound(_mm256_castps_si256(values), &low, &high);
        _mm256_store_ps((float *)(to + k), values);
    }
    _mm256_store_si256((__m256i *)bounds->low, low);
    _mm256_store_si256((__m256i *)bounds->high, high);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

typedef __m256 ltx2c_haswell_tile[LTX2C_HASWELL_ROWS][2];

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

/* ---- Epilogue ---------------------------------------------------------------------------------------------------- */

/* The first term's aggregate: bf16(acc). */
LTX2C_INLINE void ltx2c_haswell_first(const int rows, ltx2c_haswell_tile sum, ltx2c_haswell_tile aggregate) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < 2; v++) aggregate[r][v] = ltx2c_haswell_round(sum[r][v]);
    }
}

/* A later term's: bf16(agg + scale * acc), multiply and add rounded separately. */
LTX2C_INLINE void ltx2c_haswell_later(const int rows, ltx2c_haswell_tile sum, ltx2c_haswell_tile aggregate,
                                      float scale) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < 2; v++) {
            __m256 scaled = _mm256_mul_ps(_mm256_set1_ps(scale), sum[r][v]);
            aggregate[r][v] = ltx2c_haswell_round(_mm256_add_ps(aggregate[r][v], scaled));
        }
    }
}

/* Results that are inf or NaN: canonical NaNs, and how many of them the weight did not bring along. */
LTX2C_INLINE uint64_t ltx2c_haswell_special_bf16(char *out, __m256i before, __m256i result) {
    const __m256i top = _mm256_set1_epi16(0x7f80), magnitude = _mm256_set1_epi16(0x7fff);
    __m256i lost = _mm256_andnot_si256(_mm256_cmpeq_epi16(_mm256_and_si256(before, top), top),
                                       _mm256_cmpeq_epi16(_mm256_and_si256(result, top), top));
    __m256i nan = _mm256_cmpgt_epi16(_mm256_and_si256(result, magnitude), top);
    _mm256_storeu_si256((__m256i *)out, _mm256_blendv_epi8(result, _mm256_set1_epi16(0x7fc0), nan));
    return (uint64_t)__builtin_popcount((unsigned)_mm256_movemask_epi8(lost)) / 2;
}

LTX2C_INLINE uint64_t ltx2c_haswell_finish_bf16(char *out, const char *weight, __m256 even, __m256 odd) {
    const __m256i top = _mm256_set1_epi16(0x7f80);
    __m256i before = _mm256_loadu_si256((const __m256i *)weight);
    even = _mm256_add_ps(even, _mm256_castsi256_ps(ltx2c_haswell_even(before)));
    odd = _mm256_add_ps(odd, _mm256_castsi256_ps(ltx2c_haswell_odd(before)));
    __m256i result = _mm256_blend_epi16(_mm256_srli_epi32(ltx2c_haswell_round_up(even), 16),
                                        ltx2c_haswell_round_up(odd), 0xaa);
    __m256i special = _mm256_cmpeq_epi16(_mm256_and_si256(result, top), top);
    if (__builtin_expect(!_mm256_testz_si256(special, special), 0))
        return ltx2c_haswell_special_bf16(out, before, result);
    _mm256_storeu_si256((__m256i *)out, result);
    return 0;
}

/* bf16(aggregate + before) as f32, NaNs canonical; counts results of at least `limit` whose weight was finite. */
LTX2C_INLINE __m256 ltx2c_haswell_add_wide(__m256 aggregate, __m256 before, uint32_t limit, uint64_t *nonfinite) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 sum = _mm256_add_ps(aggregate, before);
    __m256 result = _mm256_blendv_ps(ltx2c_haswell_round(sum), _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)),
                                     _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
    __m256i size = _mm256_and_si256(_mm256_castps_si256(result), magnitude);
    __m256i finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000),
                                        _mm256_and_si256(_mm256_castps_si256(before), magnitude));
    __m256i lost = _mm256_and_si256(_mm256_cmpgt_epi32(size, _mm256_set1_epi32((int)limit - 1)), finite);
    *nonfinite += (uint64_t)__builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(lost)));
    return result;
}

/* f32 and f16 weights: the aggregate goes back to natural column order first. */
LTX2C_INLINE uint64_t ltx2c_haswell_finish_wide(char *out, const char *weight, __m256 even, __m256 odd,
                                                ltx2c_dtype dtype) {
    const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    const __m256 aggregate[2] = {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
    uint64_t nonfinite = 0;
    LTX2C_UNROLL
    for (int half = 0; half < 2; half++) {
        if (dtype == LTX2C_F32) {
            __m256 before = _mm256_loadu_ps((const float *)(weight + 32 * half));
            _mm256_storeu_ps((float *)(out + 32 * half),
                             ltx2c_haswell_add_wide(aggregate[half], before, 0x7f800000, &nonfinite));
        } else { /* from 65536 on a bf16 value becomes inf in f16 */
            __m256 before = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)weight + half));
            __m256 sum = ltx2c_haswell_add_wide(aggregate[half], before, 0x47800000, &nonfinite);
            _mm_storeu_si128((__m128i *)out + half, _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
        }
    }
    return nonfinite;
}

/* ---- Strips ------------------------------------------------------------------------------------------------------ */

/* One term's sum for panel p. */
LTX2C_INLINE void ltx2c_haswell_term(const int rows, const ltx2c_factors *f, size_t p, ltx2c_haswell_tile sum) {
    const uint32_t *a = f->a + p * f->depth * LTX2C_HASWELL_PANEL;
    if (ltx2c_exact_mode(f->a_range[p / LTX2C_HASWELL_UNIT], f->b_range) == LTX2C_MULADD)
        ltx2c_haswell_product(rows, 0, sum, a, f);
    else
        ltx2c_haswell_product(rows, 1, sum, a, f);
}

LTX2C_INLINE uint64_t ltx2c_haswell_rows(const int rows, const ltx2c_strip *s) {
    const size_t panel_bytes = LTX2C_HASWELL_PANEL * ltx2c_itemsize(s->dtype);
    const char *weight = s->weight;
    char *out = s->out;
    uint64_t nonfinite = 0;
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) _mm_prefetch(weight + r * s->weight_stride, _MM_HINT_T0);
    for (size_t p = s->first; p < s->last; p++, out += panel_bytes, weight += panel_bytes) {
        ltx2c_haswell_tile sum, aggregate;
        ltx2c_haswell_term(rows, s->terms, p, sum);
        ltx2c_haswell_first(rows, sum, aggregate);
        for (size_t t = 1; t < s->term_count; t++) {
            ltx2c_haswell_term(rows, &s->terms[t], p, sum);
            ltx2c_haswell_later(rows, sum, aggregate, s->terms[t].scale);
        }
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) {
            char *to = out + r * s->out_stride;
            const char *from = weight + r * s->weight_stride;
            nonfinite += s->dtype == LTX2C_BF16
                             ? ltx2c_haswell_finish_bf16(to, from, aggregate[r][0], aggregate[r][1])
                             : ltx2c_haswell_finish_wide(to, from, aggregate[r][0], aggregate[r][1], s->dtype);
        }
    }
    return nonfinite;
}

static uint64_t ltx2c_haswell_rows_1(const ltx2c_strip *s) { return ltx2c_haswell_rows(1, s); }
static uint64_t ltx2c_haswell_rows_2(const ltx2c_strip *s) { return ltx2c_haswell_rows(2, s); }
static uint64_t ltx2c_haswell_rows_3(const ltx2c_strip *s) { return ltx2c_haswell_rows(3, s); }
static uint64_t ltx2c_haswell_rows_4(const ltx2c_strip *s) { return ltx2c_haswell_rows(4, s); }
static uint64_t ltx2c_haswell_rows_5(const ltx2c_strip *s) { return ltx2c_haswell_rows(5, s); }
static uint64_t ltx2c_haswell_rows_6(const ltx2c_strip *s) { return ltx2c_haswell_rows(6, s); }

static uint64_t ltx2c_haswell_strip(const ltx2c_strip *s) {
    static uint64_t (*const by_rows[])(const ltx2c_strip *) = {ltx2c_haswell_rows_1, ltx2c_haswell_rows_2,
                                                               ltx2c_haswell_rows_3, ltx2c_haswell_rows_4,
                                                               ltx2c_haswell_rows_5, ltx2c_haswell_rows_6};
    return by_rows[s->rows - 1](s);
}

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
    .obstacle = ltx2c_haswell_obstacle,
    .panel = LTX2C_HASWELL_PANEL,
    .rows = LTX2C_HASWELL_ROWS,
    .pair = 1,
    .pack_a = ltx2c_haswell_pack_a,
    .pack_b = ltx2c_haswell_pack_b,
    .strip = ltx2c_haswell_strip,
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
