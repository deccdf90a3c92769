/* skylake: AVX-512 (F, BW, DQ, VL), f32 fused multiply-add.
 *
 * Register tile: 6 rows by a panel of 64 columns: 24 accumulators, 4 words of A, a broadcast of B: 29 of 32 registers,
 * and 24 independent chains cover the instruction's latency. Each broadcast is used 4 times, each load of A 6 times.
 *
 * A panel holds, for each 32 columns, the 16 even ones and then the 16 odd ones. That is the order in which a vector of
 * 32 bf16 splits into two of f32 by one shift and one mask, and joins again by one ternary operation: neither packing
 * nor the epilogue of a bf16 weight needs a shuffle.
 *
 * May assume: A 64-byte aligned and padded with zeros to whole panels, B's rows padded with zeros, weight and out
 * readable and writable for whole panels (the driver stages what is not), round to nearest, no flushing in MXCSR.
 */
#if defined(__x86_64__) && !defined(LTX2C_WITHOUT_SKYLAKE)
#ifdef LTX2C_LISTING
&ltx2c_skylake,
#elif !defined(LTX2C_SKYLAKE_H)
#define LTX2C_SKYLAKE_H

#include <immintrin.h>

#include "core.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")
#endif

enum {
    LTX2C_SKYLAKE_ROWS = 6,
    LTX2C_SKYLAKE_VECTORS = 4,
    LTX2C_SKYLAKE_PANEL = 64,
    LTX2C_SKYLAKE_UNIT = LTX2C_UNIT / LTX2C_SKYLAKE_PANEL /* panels */
};

static const char *ltx2c_skylake_obstacle(void) {
    int runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return runs ? NULL : "this CPU lacks AVX-512 F, BW, DQ or VL";
}

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

/* The even bf16 of a vector, as f32 bits; the odd ones. */
LTX2C_INLINE __m512i ltx2c_skylake_even(__m512i halves) { return _mm512_slli_epi32(halves, 16); }

LTX2C_INLINE __m512i ltx2c_skylake_odd(__m512i halves) {
    return _mm512_and_si512(halves, _mm512_set1_epi32((int)0xffff0000));
}

/* Bounds of bf16 magnitudes; a word of f32 bits counts as a bf16 and a zero, and zeros are hidden. */
LTX2C_INLINE void ltx2c_skylake_bound(__m512i halves, __m512i *low, __m512i *high) {
    __m512i magnitude = _mm512_and_si512(halves, _mm512_set1_epi16(0x7fff));
    *low = _mm512_min_epu16(*low, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
    *high = _mm512_max_epu16(*high, magnitude);
}

static void ltx2c_skylake_pack_a(uint32_t *to, size_t panel_words, const char *row, const char *next, size_t panels,
                                 ltx2c_bounds *bounds) {
    (void)next;
    __m512i low = _mm512_load_si512(bounds->low), high = _mm512_load_si512(bounds->high);
    for (size_t p = 0; p < panels; p++, to += panel_words, row += 2 * LTX2C_SKYLAKE_PANEL) {
        LTX2C_UNROLL
        for (int half = 0; half < 2; half++) {
            __m512i values = _mm512_loadu_si512(row + 64 * half);
            ltx2c_skylake_bound(values, &low, &high);
            _mm512_store_si512(to + 32 * half, ltx2c_skylake_even(values));
            _mm512_store_si512(to + 32 * half + 16, ltx2c_skylake_odd(values));
        }
    }
    _mm512_store_si512(bounds->low, low);
    _mm512_store_si512(bounds->high, high);
}

/* f32 bits rounded to bf16 in their upper half; the lower half holds rubbish. NaNs must have their low half clear,
 * which holds for whatever arithmetic makes of bf16 values: payloads come from an operand or are the default. */
LTX2C_INLINE __m512i ltx2c_skylake_round_up(__m512 values) {
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

LTX2C_INLINE __m512 ltx2c_skylake_round(__m512 values) {
    return _mm512_castsi512_ps(ltx2c_skylake_odd(ltx2c_skylake_round_up(values)));
}

static void ltx2c_skylake_pack_b(uint32_t *to, const char *row, size_t count, const float *scale,
                                 ltx2c_bounds *bounds) {
    __m512i low = _mm512_load_si512(bounds->low), high = _mm512_load_si512(bounds->high);
    for (size_t k = 0; k < count; k += 16) {
        __m512i half = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(row + 2 * k)));
        __m512 values = _mm512_castsi512_ps(_mm512_slli_epi32(half, 16));
        if (scale) values = ltx2c_skylake_round(_mm512_mul_ps(values, _mm512_set1_ps(*scale)));
        ltx2c_skylake_bound(_mm512_castps_si512(values), &low, &high);
        _mm512_store_ps(to + k, values);
    }
    _mm512_store_si512(bounds->low, low);
    _mm512_store_si512(bounds->high, high);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

typedef __m512 ltx2c_skylake_tile[LTX2C_SKYLAKE_ROWS][LTX2C_SKYLAKE_VECTORS];

LTX2C_INLINE void ltx2c_skylake_clear(const int rows, ltx2c_skylake_tile sum) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < LTX2C_SKYLAKE_VECTORS; v++) sum[r][v] = _mm512_setzero_ps();
    }
}

/* sum += b * a, one k; rounded once when `fused`, twice otherwise. */
LTX2C_INLINE __m512 ltx2c_skylake_step(const int fused, __m512 b, __m512 a, __m512 sum) {
    return fused ? _mm512_fmadd_ps(b, a, sum) : _mm512_add_ps(sum, _mm512_mul_ps(b, a));
}

LTX2C_INLINE void ltx2c_skylake_product(const int rows, const int fused, ltx2c_skylake_tile sum, const uint32_t *a,
                                        const uint32_t *b, size_t b_stride, size_t depth) {
    for (size_t k = 0; k < depth; k++, a += LTX2C_SKYLAKE_PANEL) {
        __m512 columns[LTX2C_SKYLAKE_VECTORS];
        LTX2C_UNROLL
        for (int v = 0; v < LTX2C_SKYLAKE_VECTORS; v++) columns[v] = _mm512_load_ps(a + 16 * v);
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512 row = _mm512_set1_ps(ltx2c_float(b[(size_t)r * b_stride + k]));
            LTX2C_UNROLL
            for (int v = 0; v < LTX2C_SKYLAKE_VECTORS; v++)
                sum[r][v] = ltx2c_skylake_step(fused, row, columns[v], sum[r][v]);
        }
    }
}

/* Asks for the first tile's weights, which come from memory while its product runs. Where a strip has more tiles than
 * that one, the products are short, and the CPU sees the pattern by itself. */
LTX2C_INLINE void ltx2c_skylake_prefetch(const int rows, const char *weight, ptrdiff_t stride, size_t panel_bytes) {
    for (size_t at = 0; at < panel_bytes; at += 64) {
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) _mm_prefetch(weight + r * stride + at, _MM_HINT_T0);
    }
}

/* ---- Epilogue ---------------------------------------------------------------------------------------------------- */

/* The first term's aggregate: bf16(acc). */
LTX2C_INLINE void ltx2c_skylake_first(const int rows, ltx2c_skylake_tile sum) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < LTX2C_SKYLAKE_VECTORS; v++) sum[r][v] = ltx2c_skylake_round(sum[r][v]);
    }
}

/* The aggregate so far waits in L1 while a later term's product has the registers. */
LTX2C_INLINE void ltx2c_skylake_keep(const int rows, ltx2c_skylake_tile sum, float *aggregate) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < LTX2C_SKYLAKE_VECTORS; v++)
            _mm512_store_ps(aggregate + LTX2C_SKYLAKE_PANEL * r + 16 * v, sum[r][v]);
    }
}

/* A later term's: bf16(agg + scale * acc), multiply and add rounded separately. */
LTX2C_INLINE void ltx2c_skylake_later(const int rows, ltx2c_skylake_tile sum, const float *aggregate, float scale) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < LTX2C_SKYLAKE_VECTORS; v++) {
            __m512 scaled = _mm512_mul_ps(_mm512_set1_ps(scale), sum[r][v]);
            __m512 kept = _mm512_load_ps(aggregate + LTX2C_SKYLAKE_PANEL * r + 16 * v);
            sum[r][v] = ltx2c_skylake_round(_mm512_add_ps(kept, scaled));
        }
    }
}

/* Result lanes that are inf or NaN: canonical NaNs, and how many of them the weight did not bring along. */
LTX2C_INLINE uint64_t ltx2c_skylake_special_bf16(char *out, __m512i weight, __m512i result) {
    const __m512i top = _mm512_set1_epi16(0x7f80), magnitude = _mm512_set1_epi16(0x7fff);
    __mmask32 nonfinite = _mm512_cmpeq_epi16_mask(_mm512_and_si512(result, top), top);
    __mmask32 before = _mm512_cmpeq_epi16_mask(_mm512_and_si512(weight, top), top);
    __mmask32 nan = _mm512_cmpgt_epi16_mask(_mm512_and_si512(result, magnitude), top);
    _mm512_storeu_si512(out, _mm512_mask_mov_epi16(result, nan, _mm512_set1_epi16(0x7fc0)));
    return (uint64_t)__builtin_popcount(nonfinite & ~before);
}

/* 32 columns of a bf16 weight: adds the aggregates of its even and odd columns to what was there before. */
LTX2C_INLINE uint64_t ltx2c_skylake_finish_bf16(char *out, __m512i before, __m512 even, __m512 odd) {
    const __m512i top = _mm512_set1_epi16(0x7f80);
    even = _mm512_add_ps(even, _mm512_castsi512_ps(ltx2c_skylake_even(before)));
    odd = _mm512_add_ps(odd, _mm512_castsi512_ps(ltx2c_skylake_odd(before)));
    __m512i result = _mm512_mask_mov_epi16(_mm512_srli_epi32(ltx2c_skylake_round_up(even), 16), 0xaaaaaaaa,
                                           ltx2c_skylake_round_up(odd));
    if (__builtin_expect(_mm512_cmpeq_epi16_mask(_mm512_and_si512(result, top), top) != 0, 0))
        return ltx2c_skylake_special_bf16(out, before, result);
    _mm512_storeu_si512(out, result);
    return 0;
}

/* bf16(aggregate + before) as f32, NaNs canonical; counts results of at least `limit` whose weight was finite. */
LTX2C_INLINE __m512 ltx2c_skylake_add_wide(__m512 aggregate, __m512 before, uint32_t limit, uint64_t *nonfinite) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512 sum = _mm512_add_ps(aggregate, before);
    __m512i result = ltx2c_skylake_odd(ltx2c_skylake_round_up(sum));
    __mmask16 nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
    result = _mm512_mask_mov_epi32(result, nan, _mm512_set1_epi32(0x7fc00000));
    __mmask16 special = _mm512_cmpge_epu32_mask(_mm512_and_si512(result, magnitude), _mm512_set1_epi32((int)limit));
    if (__builtin_expect(special != 0, 0)) {
        __m512i size = _mm512_and_si512(_mm512_castps_si512(before), magnitude);
        special &= _mm512_cmplt_epu32_mask(size, _mm512_set1_epi32(0x7f800000));
        *nonfinite += (uint64_t)__builtin_popcount(special);
    }
    return _mm512_castsi512_ps(result);
}

/* f32 and f16 weights: the aggregate goes back to natural column order first. */
LTX2C_INLINE uint64_t ltx2c_skylake_finish_wide(char *out, const char *weight, __m512 even, __m512 odd,
                                                ltx2c_dtype dtype) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    __m512 aggregate[2] = {_mm512_permutex2var_ps(even, first, odd), _mm512_permutex2var_ps(even, second, odd)};
    uint64_t nonfinite = 0;
    LTX2C_UNROLL
    for (int half = 0; half < 2; half++) {
        if (dtype == LTX2C_F32) {
            __m512 before = _mm512_loadu_ps(weight + 64 * half);
            _mm512_storeu_ps(out + 64 * half, ltx2c_skylake_add_wide(aggregate[half], before, 0x7f800000, &nonfinite));
        } else { /* from 65536 on a bf16 value becomes inf in f16 */
            __m512 before = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(weight + 32 * half)));
            __m512 sum = ltx2c_skylake_add_wide(aggregate[half], before, 0x47800000, &nonfinite);
            _mm256_storeu_si256((__m256i *)(out + 32 * half), _mm512_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
        }
    }
    return nonfinite;
}

LTX2C_INLINE uint64_t ltx2c_skylake_finish(const int rows, ltx2c_skylake_tile sum, const ltx2c_strip *s, char *out,
                                           const char *weight) {
    uint64_t nonfinite = 0;
    if (s->dtype == LTX2C_BF16) {
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) {
            LTX2C_UNROLL
            for (int half = 0; half < 2; half++)
                nonfinite += ltx2c_skylake_finish_bf16(out + r * s->out_stride + 64 * half,
                                                       _mm512_loadu_si512(weight + r * s->weight_stride + 64 * half),
                                                       sum[r][2 * half], sum[r][2 * half + 1]);
        }
        return nonfinite;
    }
    const size_t half_bytes = 32 * ltx2c_itemsize(s->dtype);
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int half = 0; half < 2; half++)
            nonfinite += ltx2c_skylake_finish_wide(out + r * s->out_stride + half * half_bytes,
                                                   weight + r * s->weight_stride + half * half_bytes, sum[r][2 * half],
                                                   sum[r][2 * half + 1], s->dtype);
    }
    return nonfinite;
}

/* ---- Strips ------------------------------------------------------------------------------------------------------ */

/* One term's sum for panel p. */
LTX2C_INLINE void ltx2c_skylake_term(const int rows, const ltx2c_factors *f, size_t p, ltx2c_skylake_tile sum) {
    const uint32_t *a = f->a + p * f->depth * LTX2C_SKYLAKE_PANEL;
    ltx2c_skylake_clear(rows, sum);
    if (ltx2c_exact_mode(f->a_range[p / LTX2C_SKYLAKE_UNIT], f->b_range) == LTX2C_MULADD)
        ltx2c_skylake_product(rows, 0, sum, a, f->b, f->b_stride, f->depth);
    else
        ltx2c_skylake_product(rows, 1, sum, a, f->b, f->b_stride, f->depth);
}

LTX2C_INLINE uint64_t ltx2c_skylake_rows(const int rows, const ltx2c_strip *s) {
    const size_t panel_bytes = LTX2C_SKYLAKE_PANEL * ltx2c_itemsize(s->dtype);
    float aggregate[LTX2C_SKYLAKE_ROWS * LTX2C_SKYLAKE_PANEL] __attribute__((aligned(64)));
    const char *weight = s->weight;
    char *out = s->out;
    uint64_t nonfinite = 0;
    ltx2c_skylake_prefetch(rows, weight, s->weight_stride, panel_bytes);
    for (size_t p = s->first; p < s->last; p++, out += panel_bytes, weight += panel_bytes) {
        ltx2c_skylake_tile sum;
        ltx2c_skylake_term(rows, s->terms, p, sum);
        ltx2c_skylake_first(rows, sum);
        for (size_t t = 1; t < s->term_count; t++) {
            ltx2c_skylake_keep(rows, sum, aggregate);
            ltx2c_skylake_term(rows, &s->terms[t], p, sum);
            ltx2c_skylake_later(rows, sum, aggregate, s->terms[t].scale);
        }
        nonfinite += ltx2c_skylake_finish(rows, sum, s, out, weight);
    }
    return nonfinite;
}

static uint64_t ltx2c_skylake_rows_1(const ltx2c_strip *s) { return ltx2c_skylake_rows(1, s); }
static uint64_t ltx2c_skylake_rows_2(const ltx2c_strip *s) { return ltx2c_skylake_rows(2, s); }
static uint64_t ltx2c_skylake_rows_3(const ltx2c_strip *s) { return ltx2c_skylake_rows(3, s); }
static uint64_t ltx2c_skylake_rows_4(const ltx2c_strip *s) { return ltx2c_skylake_rows(4, s); }
static uint64_t ltx2c_skylake_rows_5(const ltx2c_strip *s) { return ltx2c_skylake_rows(5, s); }
static uint64_t ltx2c_skylake_rows_6(const ltx2c_strip *s) { return ltx2c_skylake_rows(6, s); }

static uint64_t ltx2c_skylake_strip(const ltx2c_strip *s) {
    static uint64_t (*const by_rows[])(const ltx2c_strip *) = {ltx2c_skylake_rows_1, ltx2c_skylake_rows_2,
                                                               ltx2c_skylake_rows_3, ltx2c_skylake_rows_4,
                                                               ltx2c_skylake_rows_5, ltx2c_skylake_rows_6};
    return by_rows[s->rows - 1](s);
}

/* Accumulators that no compiler can take for one another; and something that depends on all of them. */
LTX2C_INLINE void ltx2c_skylake_distinct(ltx2c_skylake_tile sum, float seed) {
    LTX2C_UNROLL
    for (int r = 0; r < LTX2C_SKYLAKE_ROWS; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < LTX2C_SKYLAKE_VECTORS; v++) sum[r][v] = _mm512_set1_ps(seed * (float)(8 * r + v));
    }
}

static float ltx2c_skylake_total(ltx2c_skylake_tile sum) {
    __m512 total = _mm512_setzero_ps();
    for (int r = 0; r < LTX2C_SKYLAKE_ROWS; r++)
        for (int v = 0; v < LTX2C_SKYLAKE_VECTORS; v++) total = _mm512_add_ps(total, sum[r][v]);
    return _mm512_reduce_add_ps(total);
}

static float ltx2c_skylake_peak(float seed) {
    const __m512 value = _mm512_set1_ps(seed);
    ltx2c_skylake_tile sum;
    ltx2c_skylake_distinct(sum, seed);
    for (size_t k = 0; k < LTX2C_PEAK_STEPS; k++) {
        LTX2C_UNROLL
        for (int r = 0; r < LTX2C_SKYLAKE_ROWS; r++) {
            LTX2C_UNROLL
            for (int v = 0; v < LTX2C_SKYLAKE_VECTORS; v++) sum[r][v] = _mm512_fmadd_ps(value, value, sum[r][v]);
        }
    }
    return ltx2c_skylake_total(sum);
}

static const ltx2c_kernel ltx2c_skylake = {
    .name = "skylake",
    .obstacle = ltx2c_skylake_obstacle,
    .panel = LTX2C_SKYLAKE_PANEL,
    .rows = LTX2C_SKYLAKE_ROWS,
    .pair = 1,
    .pack_a = ltx2c_skylake_pack_a,
    .pack_b = ltx2c_skylake_pack_b,
    .strip = ltx2c_skylake_strip,
    .peak_macs = (uint64_t)LTX2C_PEAK_STEPS * LTX2C_SKYLAKE_ROWS * LTX2C_SKYLAKE_PANEL,
    .peak = ltx2c_skylake_peak,
};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
#endif
