/* skylake: AVX-512 (F, BW, DQ, VL), f32 fused multiply-add.
 *
 * Register tile: 6 rows by a panel of 64 columns: 24 accumulators, 4 words of A, a broadcast of B: 29 of 32 registers,
 * and 24 independent chains cover the instruction's latency. Each broadcast is used 4 times, each load of A 6 times.
 *
 * A panel holds, for each 32 columns, the 16 even ones and then the 16 odd ones. That is the order in which a vector of
 * 32 bf16 splits into two of f32 by one shift and one mask, and joins again by one ternary operation: neither packing
 * nor the epilogue of a bf16 weight needs a shuffle.
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
    ltx2c_skylake_mr = 6,
    ltx2c_skylake_lanes = 16,
    ltx2c_skylake_vectors = 4,
    LTX2C_SKYLAKE_PANEL = 64,
    LTX2C_SKYLAKE_UNIT = (int)LTX2C_UNIT / LTX2C_SKYLAKE_PANEL /* panels */
};

typedef __m512 ltx2c_skylake_vector;
typedef __m512i ltx2c_skylake_halves;
typedef __m512 ltx2c_skylake_tile[ltx2c_skylake_mr][ltx2c_skylake_vectors];

static const char *ltx2c_skylake_unsupported(void) {
    int runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return runs ? NULL : "this CPU lacks AVX-512 F, BW, DQ or VL";
}

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

/* A word in all lanes, made once a function: GCC would rather make each anew at every use, on the port that also adds. */
LTX2C_INLINE __m512i ltx2c_skylake_constant(uint32_t word) {
    __m512i v = _mm512_set1_epi32((int)word);
    __asm__("" : "+v"(v));
    return v;
}

/* The even bf16 of a vector, as f32 bits; the odd ones. */
LTX2C_INLINE __m512i ltx2c_skylake_even(__m512i halves) { return _mm512_slli_epi32(halves, 16); }

LTX2C_INLINE __m512i ltx2c_skylake_odd(__m512i halves) {
    return _mm512_and_si512(halves, ltx2c_skylake_constant(0xffff0000));
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
    const __m512i bits = _mm512_castps_si512(values);
    /* bits + 0x7fff + tie is bits - (0xffff8000 | !tie), where tie is bit 16: one bitwise operation of three operands */
    const __m512i less = _mm512_ternarylogic_epi32(_mm512_srli_epi32(bits, 16), ltx2c_skylake_constant(1),
                                                   ltx2c_skylake_constant(0xffff8000), 0xae);
    return _mm512_sub_epi32(bits, less);
}

LTX2C_INLINE __m512 ltx2c_skylake_round(__m512 values) {
    return _mm512_castsi512_ps(ltx2c_skylake_odd(ltx2c_skylake_round_up(values)));
}

static void ltx2c_skylake_pack_b(uint32_t *to, const char *row, size_t count, const float *strength,
                                 ltx2c_bounds *bounds) {
    __m512i low = _mm512_load_si512(bounds->low), high = _mm512_load_si512(bounds->high);
    for (size_t k = 0; k < count; k += 16) {
        __m512i half = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(row + 2 * k)));
        __m512 values = _mm512_castsi512_ps(_mm512_slli_epi32(half, 16));
        if (strength) values = ltx2c_skylake_round(_mm512_mul_ps(values, _mm512_set1_ps(*strength)));
        ltx2c_skylake_bound(_mm512_castps_si512(values), &low, &high);
        _mm512_store_ps(to + k, values);
    }
    _mm512_store_si512(bounds->low, low);
    _mm512_store_si512(bounds->high, high);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

LTX2C_INLINE void ltx2c_skylake_clear(const int rows, ltx2c_skylake_tile sum) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < ltx2c_skylake_vectors; v++) sum[r][v] = _mm512_setzero_ps();
    }
}

/* sum += b * a, one k; rounded once when `fused`, twice otherwise. */
LTX2C_INLINE __m512 ltx2c_skylake_step(const int fused, __m512 b, __m512 a, __m512 sum) {
    return fused ? _mm512_fmadd_ps(b, a, sum) : _mm512_add_ps(sum, _mm512_mul_ps(b, a));
}

LTX2C_INLINE void ltx2c_skylake_product(const int rows, const int fused, ltx2c_skylake_tile sum, const uint32_t *a,
                                        const uint32_t *b, size_t b_stride, size_t depth) {
    for (size_t k = 0; k < depth; k++, a += LTX2C_SKYLAKE_PANEL) {
        __m512 columns[ltx2c_skylake_vectors];
        LTX2C_UNROLL
        for (int v = 0; v < ltx2c_skylake_vectors; v++) columns[v] = _mm512_load_ps(a + 16 * v);
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512 row = _mm512_set1_ps(ltx2c_float(b[(size_t)r * b_stride + k]));
            LTX2C_UNROLL
            for (int v = 0; v < ltx2c_skylake_vectors; v++)
                sum[r][v] = ltx2c_skylake_step(fused, row, columns[v], sum[r][v]);
        }
    }
}

/* ---- Vectors, for tile.h ----------------------------------------------------------------------------------------- */

LTX2C_INLINE __m512 ltx2c_skylake_splat(float value) { return _mm512_set1_ps(value); }
LTX2C_INLINE __m512 ltx2c_skylake_add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
LTX2C_INLINE __m512 ltx2c_skylake_mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
LTX2C_INLINE __m512 ltx2c_skylake_load(const char *from) { return _mm512_loadu_ps(from); }
LTX2C_INLINE void ltx2c_skylake_store(char *to, __m512 v) { _mm512_storeu_ps(to, v); }
LTX2C_INLINE __m512 ltx2c_skylake_kept(const float *from) { return _mm512_load_ps(from); }
LTX2C_INLINE void ltx2c_skylake_keep(float *to, __m512 v) { _mm512_store_ps(to, v); }

LTX2C_INLINE __m512 ltx2c_skylake_load_f16(const char *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

LTX2C_INLINE void ltx2c_skylake_store_f16(char *to, __m512 v) {
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

LTX2C_INLINE void ltx2c_skylake_split(__m512 left, __m512 right, __m512 *even, __m512 *odd) {
    const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(left, first, right);
    *odd = _mm512_permutex2var_ps(left, _mm512_add_epi32(first, _mm512_set1_epi32(1)), right);
}

LTX2C_INLINE void ltx2c_skylake_join(__m512 even, __m512 odd, __m512 *left, __m512 *right) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *left = _mm512_permutex2var_ps(even, first, odd);
    *right = _mm512_permutex2var_ps(even, _mm512_add_epi32(first, _mm512_set1_epi32(8)), odd);
}

LTX2C_INLINE void ltx2c_skylake_get_bf16(const char *from, __m512 *even, __m512 *odd) {
    const __m512i halves = _mm512_loadu_si512(from);
    *even = _mm512_castsi512_ps(ltx2c_skylake_even(halves));
    *odd = _mm512_castsi512_ps(ltx2c_skylake_odd(halves));
}

LTX2C_INLINE __m512i ltx2c_skylake_to_bf16(__m512 even, __m512 odd) {
    /* a bitwise choice: upper ? x : y */
    return _mm512_ternarylogic_epi32(ltx2c_skylake_constant(0xffff0000), ltx2c_skylake_round_up(odd),
                                     _mm512_srli_epi32(ltx2c_skylake_round_up(even), 16), 0xca);
}

LTX2C_INLINE void ltx2c_skylake_store_bf16(char *to, __m512i halves) { _mm512_storeu_si512(to, halves); }

LTX2C_INLINE int ltx2c_skylake_special_bf16(__m512i halves) {
    const __m512i top = ltx2c_skylake_constant(0x7f807f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(halves, top), top) != 0;
}

LTX2C_INLINE __m512 ltx2c_skylake_canonical(__m512 v) {
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                              _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}

LTX2C_INLINE int ltx2c_skylake_any_at_least(__m512 even, __m512 odd, uint32_t limit) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i most = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(even), magnitude),
                                          _mm512_and_si512(_mm512_castps_si512(odd), magnitude));
    return _mm512_cmpge_epu32_mask(most, _mm512_set1_epi32((int)limit)) != 0;
}

/* Asks for the first tile's weights, which come from memory while its product runs. Where a strip has more tiles than
 * that one, the products are short, and the CPU sees the pattern by itself. */
LTX2C_INLINE void ltx2c_skylake_prefetch(const int rows, const char *weight, ptrdiff_t stride, size_t panel_bytes) {
    for (size_t at = 0; at < panel_bytes; at += 64) {
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) _mm_prefetch(weight + r * stride + at, _MM_HINT_T0);
    }
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* One term's product for panel p. Under F32 every step is fused. */
LTX2C_INLINE void ltx2c_skylake_term(const int rows, const int f32, const ltx2c_factors *f, size_t p,
                                     ltx2c_skylake_tile sum) {
    const uint32_t *a = f->a + p * f->depth * LTX2C_SKYLAKE_PANEL;
    ltx2c_skylake_clear(rows, sum);
    if (f32 || ltx2c_exact_mode(f->a_range[p / LTX2C_SKYLAKE_UNIT], f->b_range) != LTX2C_MULADD)
        ltx2c_skylake_product(rows, 1, sum, a, f->b, f->b_stride, f->depth);
    else
        ltx2c_skylake_product(rows, 0, sum, a, f->b, f->b_stride, f->depth);
}

#define LTX2C_VECTOR(name) ltx2c_skylake_##name
#define LTX2C_TILE(name) ltx2c_skylake_##name
#include "tile.h"

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* Accumulators that no compiler can take for one another; and something that depends on all of them. */
LTX2C_INLINE void ltx2c_skylake_distinct(ltx2c_skylake_tile sum, float seed) {
    LTX2C_UNROLL
    for (int r = 0; r < ltx2c_skylake_mr; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < ltx2c_skylake_vectors; v++) sum[r][v] = _mm512_set1_ps(seed * (float)(8 * r + v));
    }
}

static float ltx2c_skylake_total(ltx2c_skylake_tile sum) {
    __m512 total = _mm512_setzero_ps();
    for (int r = 0; r < ltx2c_skylake_mr; r++)
        for (int v = 0; v < ltx2c_skylake_vectors; v++) total = _mm512_add_ps(total, sum[r][v]);
    return _mm512_reduce_add_ps(total);
}

static float ltx2c_skylake_peak(float seed) {
    const __m512 value = _mm512_set1_ps(seed);
    ltx2c_skylake_tile sum;
    ltx2c_skylake_distinct(sum, seed);
    for (size_t k = 0; k < LTX2C_PEAK_STEPS; k++) {
        LTX2C_UNROLL
        for (int r = 0; r < ltx2c_skylake_mr; r++) {
            LTX2C_UNROLL
            for (int v = 0; v < ltx2c_skylake_vectors; v++) sum[r][v] = _mm512_fmadd_ps(value, value, sum[r][v]);
        }
    }
    return ltx2c_skylake_total(sum);
}

static const ltx2c_kernel ltx2c_skylake = {
    .name = "skylake",
    .unsupported = ltx2c_skylake_unsupported,
    .panel = LTX2C_SKYLAKE_PANEL,
    .rows = ltx2c_skylake_mr,
    .pair = 1,
    .blocking = {.panel_bytes = 24 << 10, .b_bytes = 256 << 10, .rows = 252, .stream_rows = 60, .columns = 1024},
    .pack_a = ltx2c_skylake_pack_a,
    .pack_a_wide = ltx2c_skylake_pack_a_wide,
    .pack_b_wide = ltx2c_skylake_pack_b_wide,
    .pack_b = ltx2c_skylake_pack_b,
    .strip = ltx2c_skylake_strip_by_rows,
    .peak_macs = (uint64_t)LTX2C_PEAK_STEPS * ltx2c_skylake_mr * LTX2C_SKYLAKE_PANEL,
    .peak = ltx2c_skylake_peak,
};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
#endif
