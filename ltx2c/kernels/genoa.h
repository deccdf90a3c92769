/* genoa: AVX-512 with AVX512_BF16, two multiply-adds per lane and instruction, and exact where the guard says so.
 *
 * VDPBF16PS does two fused multiply-adds per f32 lane, first the odd (high) element of the pair, then the even (low)
 * one, each rounded to nearest even, and treats denormals as zero, in and out. So a word holds k in its high half and
 * k + 1 in its low half: the sum runs in strictly increasing k. Under the guard of ltx2c_exact_mode() nothing denormal
 * exists to be flushed. A tile that fails it runs on the same packed pairs in f32, each half widened by a mask or a
 * shift.
 *
 * Intel's manual gives that order, both roundings and the flushing (VDPBF16PS, "Operation"). An emulator, an erratum or
 * another vendor may not follow it, so the kernel tries order and roundings before first use. The flushing needs no
 * trial: a CPU that keeps denormals is exact as well. Under the guard a product meets none; the epilogue does again
 * whatever could show one, and takes no other result whose bits depend on it.
 *
 * Register tile, panels and assumptions are skylake's, and so is the epilogue of f32 and f16 weights.
 */
#if defined(__x86_64__) && !defined(LTX2C_WITHOUT_GENOA) && !defined(LTX2C_WITHOUT_SKYLAKE)
#ifdef LTX2C_LISTING
&ltx2c_genoa,
#elif !defined(LTX2C_GENOA_H)
#define LTX2C_GENOA_H

#include "environment.h"
#include "skylake.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")
#endif

/* ---- The probe --------------------------------------------------------------------------------------------------- */

/* The first (high) value of each pair as f32; the second. */
LTX2C_INLINE __m512 ltx2c_genoa_first(__m512i pairs) { return _mm512_castsi512_ps(ltx2c_skylake_odd(pairs)); }

LTX2C_INLINE __m512 ltx2c_genoa_second(__m512i pairs) { return _mm512_castsi512_ps(ltx2c_skylake_even(pairs)); }

/* Whether the instruction equals two fused multiply-adds, high half first, on 512 lanes of values 16 binades wide: sums
 * that round at both steps, with cancellation, where any other order or a single rounding gives other bits. Apart:
 * inlined, its instructions could come before the question whether this CPU has them. */
LTX2C_APART int ltx2c_genoa_probe(void) {
    uint32_t words[48], drawn = 1;
    __mmask16 wrong = 0;
    for (int round = 0; round < 32; round++) {
        for (int i = 0; i < 48; i++) {
            drawn = drawn * 1664525 + 1013904223;
            words[i] = (drawn & 0x87ff87ff) | 0x3c003c00; /* exponents 120..127 or so, any sign and mantissa */
        }
        __m512i a = _mm512_loadu_si512(words), b = _mm512_loadu_si512(words + 16);
        __m512 sum = _mm512_loadu_ps(words + 32);
        __m512 expected = _mm512_fmadd_ps(ltx2c_genoa_first(a), ltx2c_genoa_first(b), sum);
        expected = _mm512_fmadd_ps(ltx2c_genoa_second(a), ltx2c_genoa_second(b), expected);
        __m512 actual = _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
        wrong |= _mm512_cmpneq_epi32_mask(_mm512_castps_si512(actual), _mm512_castps_si512(expected));
    }
    return wrong == 0;
}

static const char *ltx2c_genoa_unsupported(void) {
    const char *unsupported = ltx2c_skylake_unsupported();
    if (unsupported) return unsupported;
    if (!__builtin_cpu_supports("avx512bf16")) return "this CPU lacks AVX512_BF16";
    const ltx2c_environment saved = ltx2c_enter_environment();
    int exact = ltx2c_genoa_probe();
    ltx2c_leave_environment(saved);
    return exact ? NULL : "VDPBF16PS does not add in the expected order on this CPU";
}

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

static void ltx2c_genoa_pack_a(uint32_t *to, size_t panel_words, const char *row, const char *next, size_t panels,
                               ltx2c_bounds *bounds) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512i low = _mm512_load_si512(bounds->low), high = _mm512_load_si512(bounds->high);
    for (size_t p = 0; p < panels; p++, to += panel_words) {
        LTX2C_UNROLL
        for (int half = 0; half < 2; half++, row += 64, next += 64) {
            __m512i first = _mm512_loadu_si512(row), second = _mm512_loadu_si512(next);
            ltx2c_skylake_bound(first, &low, &high);
            ltx2c_skylake_bound(second, &low, &high);
            /* a bitwise choice: upper ? x : y */
            __m512i even = _mm512_ternarylogic_epi32(upper, _mm512_slli_epi32(first, 16), second, 0xca);
            __m512i odd = _mm512_ternarylogic_epi32(upper, first, _mm512_srli_epi32(second, 16), 0xca);
            _mm512_store_si512(to + 32 * half, even);
            _mm512_store_si512(to + 32 * half + 16, odd);
        }
    }
    _mm512_store_si512(bounds->low, low);
    _mm512_store_si512(bounds->high, high);
}

static void ltx2c_genoa_pack_b(uint32_t *to, const char *row, size_t count, const float *strength,
                               ltx2c_bounds *bounds) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512i low = _mm512_load_si512(bounds->low), high = _mm512_load_si512(bounds->high);
    for (size_t k = 0; k < count; k += 32, to += 16) {
        __m512i values = _mm512_loadu_si512(row + 2 * k), pairs = _mm512_rol_epi32(values, 16);
        if (strength) { /* the row's even values come first in their pairs */
            __m512 first = _mm512_castsi512_ps(ltx2c_skylake_even(values));
            __m512 second = _mm512_castsi512_ps(ltx2c_skylake_odd(values));
            __m512i first_scaled = ltx2c_skylake_round_up(_mm512_mul_ps(first, _mm512_set1_ps(*strength)));
            __m512i second_scaled = ltx2c_skylake_round_up(_mm512_mul_ps(second, _mm512_set1_ps(*strength)));
            pairs = _mm512_ternarylogic_epi32(upper, first_scaled, _mm512_srli_epi32(second_scaled, 16), 0xca);
        }
        ltx2c_skylake_bound(pairs, &low, &high);
        _mm512_store_si512(to, pairs);
    }
    _mm512_store_si512(bounds->low, low);
    _mm512_store_si512(bounds->high, high);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

LTX2C_INLINE void ltx2c_genoa_dot(const int rows, ltx2c_skylake_tile sum, const uint32_t *a, const uint32_t *b,
                                  size_t b_stride, size_t depth) {
    for (size_t k = 0; k < depth; k++, a += LTX2C_SKYLAKE_PANEL) {
        __m512i columns[ltx2c_skylake_vectors];
        LTX2C_UNROLL
        for (int v = 0; v < ltx2c_skylake_vectors; v++) columns[v] = _mm512_load_si512(a + 16 * v);
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512i row = _mm512_set1_epi32((int)b[(size_t)r * b_stride + k]);
            LTX2C_UNROLL
            for (int v = 0; v < ltx2c_skylake_vectors; v++)
                sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)row, (__m512bh)columns[v]);
        }
    }
}

/* The same sum in f32 steps, for tiles that fail the guard. */
LTX2C_INLINE void ltx2c_genoa_product(const int rows, const int fused, ltx2c_skylake_tile sum, const uint32_t *a,
                                      const uint32_t *b, size_t b_stride, size_t depth) {
    for (size_t k = 0; k < depth; k++, a += LTX2C_SKYLAKE_PANEL) {
        LTX2C_UNROLL
        for (int v = 0; v < ltx2c_skylake_vectors; v++) {
            const __m512i column = _mm512_load_si512(a + 16 * v);
            const __m512 first = ltx2c_genoa_first(column), second = ltx2c_genoa_second(column);
            LTX2C_UNROLL
            for (int r = 0; r < rows; r++) {
                const __m512i row = _mm512_set1_epi32((int)b[(size_t)r * b_stride + k]);
                sum[r][v] = ltx2c_skylake_step(fused, ltx2c_genoa_first(row), first, sum[r][v]);
                sum[r][v] = ltx2c_skylake_step(fused, ltx2c_genoa_second(row), second, sum[r][v]);
            }
        }
    }
}

/* ---- Epilogue ---------------------------------------------------------------------------------------------------- */

/* What the epilogue needs beside the sums, made once: GCC would rather make each anew at every use. */
typedef struct {
    __m512i left, right; /* words of (aggregate, weight) to pairs for the left and right 16 of 32 columns */
    __m512i ones;        /* pairs of 1.0 */
    __m512i one, field;  /* of a bf16's exponent: its unit, and its upper bits */
} ltx2c_genoa_constants;

LTX2C_INLINE ltx2c_genoa_constants ltx2c_genoa_make_constants(void) {
    /* Column c's aggregate is word c / 2 of the lower half, or of the upper if c is odd; its weight is word 32 + c. */
    const __m512i column = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i aggregate = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    ltx2c_genoa_constants c;
    c.left = _mm512_or_si512(_mm512_slli_epi32(aggregate, 16), _mm512_add_epi32(column, _mm512_set1_epi32(32)));
    c.right = _mm512_add_epi32(c.left, _mm512_set1_epi32(8 << 16 | 16));
    c.ones = _mm512_set1_epi16(0x3f80);
    c.one = _mm512_set1_epi16(0x80);
    c.field = _mm512_set1_epi16(0x7800);
    __asm__("" : "+v"(c.ones), "+v"(c.one), "+v"(c.field));
    return c;
}

/* 32 columns of a row whose result may be wrong, kept for later: there is no register to spare in a tile. */
typedef struct {
    __m512i aggregate, before;
    char *out;
} ltx2c_genoa_doubt;

LTX2C_APART uint64_t ltx2c_genoa_settle(const ltx2c_genoa_doubt *doubt, const ltx2c_genoa_doubt *end) {
    uint64_t nonfinite = 0;
    for (; doubt < end; doubt++) {
        const char *before = (const char *)&doubt->before;
        ltx2c_doubt special[1];
        __m512i even = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(doubt->aggregate));
        __m512i odd = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(doubt->aggregate, 1));
        __m512 even_before, odd_before;
        ltx2c_skylake_get_bf16(before, &even_before, &odd_before);
        even_before = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(even, 16)), even_before);
        odd_before = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(odd, 16)), odd_before);
        const ltx2c_doubt *noted = ltx2c_skylake_put(LTX2C_BF16, doubt->out, before, even_before, odd_before, special);
        nonfinite += ltx2c_settle(special, noted, 2 * ltx2c_skylake_lanes, LTX2C_BF16);
    }
    return nonfinite;
}

/* 32 columns of a row of a bf16 weight. The conversion makes the aggregate, which the guard keeps clear of denormals;
 * then a dot product of (aggregate, weight) and (1, 1) is their sum, rounded once, and a second conversion rounds it
 * to bf16.
 *
 * These instructions take a denormal for zero. A denormal weight matters only in a result below 2^-112, and a denormal
 * sum shows as zero. So a result with an exponent below 15 is in doubt, and so is one of 255, inf or NaN: both are
 * rare, and are done again in full. Returns the next free doubt. */
LTX2C_INLINE ltx2c_genoa_doubt *ltx2c_genoa_finish_half(char *out, const char *weight, __m512 even, __m512 odd,
                                                        const ltx2c_genoa_constants *c, ltx2c_genoa_doubt *doubt) {
    const __m512i before = _mm512_loadu_si512(weight), aggregate = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    const __m512i left = _mm512_permutex2var_epi16(aggregate, c->left, before);
    const __m512i right = _mm512_permutex2var_epi16(aggregate, c->right, before);
    const __m512 left_sum = _mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)left, (__m512bh)c->ones);
    const __m512 right_sum = _mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)right, (__m512bh)c->ones);
    const __m512i result = (__m512i)_mm512_cvtne2ps_pbh(right_sum, left_sum);
    _mm512_storeu_si512(out, result);
    /* One more in the exponent makes 0 of 255 (the carry goes into the sign) and leaves at most 15 of what is in
     * doubt. */
    if (__builtin_expect(_mm512_testn_epi16_mask(_mm512_add_epi16(result, c->one), c->field) == 0, 1)) return doubt;
    *doubt = (ltx2c_genoa_doubt){aggregate, before, out};
    return doubt + 1;
}

LTX2C_INLINE uint64_t ltx2c_genoa_finish_plain(const int rows, ltx2c_skylake_tile sum, const ltx2c_strip *s, char *out,
                                         const char *weight) {
    const ptrdiff_t out_stride = s->out_stride, weight_stride = s->weight_stride;
    const ltx2c_genoa_constants c = ltx2c_genoa_make_constants();
    ltx2c_genoa_doubt doubts[2 * ltx2c_skylake_mr], *end = doubts;
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++, out += out_stride, weight += weight_stride) {
        end = ltx2c_genoa_finish_half(out, weight, sum[r][0], sum[r][1], &c, end);
        end = ltx2c_genoa_finish_half(out + 64, weight + 64, sum[r][2], sum[r][3], &c, end);
    }
    return __builtin_expect(end == doubts, 1) ? 0 : ltx2c_genoa_settle(doubts, end);
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* One term's product for panel p, by whichever instruction is exact. Under F32 every step is fused. */
LTX2C_INLINE void ltx2c_genoa_term(const int rows, const int f32, const ltx2c_factors *f, size_t p,
                                   ltx2c_skylake_tile sum) {
    const uint32_t *a = f->a + p * f->depth * LTX2C_SKYLAKE_PANEL;
    ltx2c_skylake_clear(rows, sum);
    if (f->wide) {
        ltx2c_skylake_product(rows, 1, sum, a, f->b, f->b_stride, f->depth);
        return;
    }
    const ltx2c_mode mode = ltx2c_exact_mode(f->a_range[p / LTX2C_SKYLAKE_UNIT], f->b_range);
    if (mode == LTX2C_DOT)
        ltx2c_genoa_dot(rows, sum, a, f->b, f->b_stride, f->depth);
    else if (f32 || mode == LTX2C_FMA)
        ltx2c_genoa_product(rows, 1, sum, a, f->b, f->b_stride, f->depth);
    else
        ltx2c_genoa_product(rows, 0, sum, a, f->b, f->b_stride, f->depth);
}

/* One term, a bf16 weight, LTX, and factors that pass the guard. */
LTX2C_INLINE int ltx2c_genoa_plain_is_exact(const ltx2c_strip *s, size_t p) {
    return ltx2c_exact_mode(s->terms->a_range[p / LTX2C_SKYLAKE_UNIT], s->terms->b_range) == LTX2C_DOT;
}

LTX2C_INLINE uint64_t ltx2c_genoa_plain_tile(const int rows, const ltx2c_strip *s, size_t p, char *out,
                                             const char *weight) {
    const ltx2c_factors *f = s->terms;
    ltx2c_skylake_tile sum;
    ltx2c_skylake_clear(rows, sum);
    ltx2c_genoa_dot(rows, sum, f->a + p * f->depth * LTX2C_SKYLAKE_PANEL, f->b, f->b_stride, f->depth);
    return ltx2c_genoa_finish_plain(rows, sum, s, out, weight);
}

#define LTX2C_VECTOR(name) ltx2c_skylake_##name
#define LTX2C_TILE(name) ltx2c_genoa_##name
#define LTX2C_PLAIN
#include "tile.h"
#undef LTX2C_PLAIN

/* Rank 1 and 2, where a sum is one word: rows pass by as streams, and nothing waits in registers. */
static uint64_t ltx2c_genoa_thin(const ltx2c_strip *s) {
    const ltx2c_factors *f = s->terms;
    const ltx2c_genoa_constants c = ltx2c_genoa_make_constants();
    ltx2c_genoa_doubt doubts[32], *end = doubts;
    uint64_t nonfinite = 0;
    for (size_t r = 0; r < s->rows; r++) {
        const __m512bh row = (__m512bh)_mm512_set1_epi32((int)f->b[r * f->b_stride]);
        const uint32_t *a = f->a + s->first * LTX2C_SKYLAKE_PANEL, *a_end = f->a + s->last * LTX2C_SKYLAKE_PANEL;
        const char *weight = s->weight + (ptrdiff_t)r * s->weight_stride;
        char *out = s->out + (ptrdiff_t)r * s->out_stride;
        for (; a < a_end; a += 32, weight += 64, out += 64) {
            _mm_prefetch(weight + 4096, _MM_HINT_T0); /* the next page: within one the CPU sees the stream by itself */
            const __m512bh even = (__m512bh)_mm512_load_si512(a), odd = (__m512bh)_mm512_load_si512(a + 16);
            end = ltx2c_genoa_finish_half(out, weight, _mm512_dpbf16_ps(_mm512_setzero_ps(), row, even),
                                          _mm512_dpbf16_ps(_mm512_setzero_ps(), row, odd), &c, end);
            if (__builtin_expect(end == doubts + 32, 0)) {
                nonfinite += ltx2c_genoa_settle(doubts, end);
                end = doubts;
            }
        }
    }
    return nonfinite + ltx2c_genoa_settle(doubts, end);
}

/* Whether every unit of the strip's only term passes the dot product's guard. */
static int ltx2c_genoa_all_dot(const ltx2c_strip *s) {
    const ltx2c_factors *f = s->terms;
    for (size_t p = s->first; p < s->last; p = (p / LTX2C_SKYLAKE_UNIT + 1) * LTX2C_SKYLAKE_UNIT)
        if (ltx2c_exact_mode(f->a_range[p / LTX2C_SKYLAKE_UNIT], f->b_range) != LTX2C_DOT) return 0;
    return 1;
}

static uint64_t ltx2c_genoa_strip(const ltx2c_strip *s) {
    const int thin = s->term_count == 1 && !s->terms->full && s->terms->depth == 1 && s->dtype == LTX2C_BF16 &&
                     s->arithmetic == LTX2C_ARITHMETIC_LTX;
    return thin && ltx2c_genoa_all_dot(s) ? ltx2c_genoa_thin(s) : ltx2c_genoa_strip_by_rows(s);
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

static float ltx2c_genoa_peak(float seed) {
    const __m512bh value = (__m512bh)_mm512_set1_ps(seed);
    ltx2c_skylake_tile sum;
    ltx2c_skylake_distinct(sum, seed);
    for (size_t k = 0; k < LTX2C_PEAK_STEPS; k++) {
        LTX2C_UNROLL
        for (int r = 0; r < ltx2c_skylake_mr; r++) {
            LTX2C_UNROLL
            for (int v = 0; v < ltx2c_skylake_vectors; v++) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], value, value);
        }
    }
    return ltx2c_skylake_total(sum);
}

static const ltx2c_kernel ltx2c_genoa = {
    .name = "genoa",
    .unsupported = ltx2c_genoa_unsupported,
    .panel = LTX2C_SKYLAKE_PANEL,
    .rows = ltx2c_skylake_mr,
    .pair = 2,
    .blocking = {.panel_bytes = 24 << 10, .b_bytes = 256 << 10, .rows = 252, .stream_rows = 60, .columns = 1024},
    .pack_a = ltx2c_genoa_pack_a,
    .pack_a_wide = ltx2c_genoa_pack_a_wide,
    .pack_b_wide = ltx2c_genoa_pack_b_wide,
    .pack_b = ltx2c_genoa_pack_b,
    .strip = ltx2c_genoa_strip,
    .peak_macs = (uint64_t)LTX2C_PEAK_STEPS * ltx2c_skylake_mr * LTX2C_SKYLAKE_PANEL * 2,
    .peak = ltx2c_genoa_peak,
};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
#endif
