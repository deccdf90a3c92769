/* neon: the SIMD that every aarch64 machine has, with FMLA.
 *
 * Register tile: 6 rows by a panel of 16 columns: 24 accumulators, 4 words of A, a broadcast of B: 29 of 32 registers.
 *
 * A panel holds, for each 8 columns, the 4 even ones and then the 4 odd ones, the order in which a vector of 8 bf16
 * splits into two of f32 by one shift and one mask.
 *
 * May assume: A 64-byte aligned and padded with zeros to whole panels, B's rows padded with zeros, weight and out
 * readable and writable for whole panels (the driver stages what is not), round to nearest, no flushing in FPCR.
 */
#if defined(__aarch64__) && !defined(LTX2C_WITHOUT_NEON)
#ifdef LTX2C_LISTING
&ltx2c_neon,
#elif !defined(LTX2C_NEON_H)
#define LTX2C_NEON_H

#include <arm_neon.h>

#include "core.h"

enum {
    LTX2C_NEON_ROWS = 6,
    LTX2C_NEON_VECTORS = 4,
    LTX2C_NEON_PANEL = 16,
    LTX2C_NEON_UNIT = LTX2C_UNIT / LTX2C_NEON_PANEL /* panels */
};

static const char *ltx2c_neon_obstacle(void) { return NULL; }

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* By bytes: loads and stores of wider elements may assume their alignment. */
LTX2C_INLINE uint16x8_t ltx2c_neon_load(const char *from) {
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)from));
}

LTX2C_INLINE uint16x4_t ltx2c_neon_load_half(const char *from) {
    return vreinterpret_u16_u8(vld1_u8((const uint8_t *)from));
}

LTX2C_INLINE void ltx2c_neon_store(char *to, uint16x8_t values) {
    vst1q_u8((uint8_t *)to, vreinterpretq_u8_u16(values));
}

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

/* The even bf16 of a vector, as f32 bits; the odd ones. */
LTX2C_INLINE uint32x4_t ltx2c_neon_even(uint16x8_t halves) { return vshlq_n_u32(vreinterpretq_u32_u16(halves), 16); }

LTX2C_INLINE uint32x4_t ltx2c_neon_odd(uint16x8_t halves) {
    return vandq_u32(vreinterpretq_u32_u16(halves), vdupq_n_u32(0xffff0000));
}

/* Bounds of bf16 magnitudes; a word of f32 bits counts as a bf16 and a zero, and zeros are hidden. */
LTX2C_INLINE void ltx2c_neon_bound(uint16x8_t halves, uint16x8_t *low, uint16x8_t *high) {
    uint16x8_t magnitude = vandq_u16(halves, vdupq_n_u16(0x7fff));
    *low = vminq_u16(*low, vsubq_u16(magnitude, vdupq_n_u16(1)));
    *high = vmaxq_u16(*high, magnitude);
}

static void ltx2c_neon_pack_a(uint32_t *to, size_t panel_words, const char *row, const char *next, size_t panels,
                              ltx2c_bounds *bounds) {
    (void)next;
    uint16x8_t low = vld1q_u16(bounds->low), high = vld1q_u16(bounds->high);
    for (size_t p = 0; p < panels; p++, to += panel_words) {
        LTX2C_UNROLL
        for (int half = 0; half < 2; half++, row += 16) {
            uint16x8_t values = ltx2c_neon_load(row);
            ltx2c_neon_bound(values, &low, &high);
            vst1q_u32(to + 8 * half, ltx2c_neon_even(values));
            vst1q_u32(to + 8 * half + 4, ltx2c_neon_odd(values));
        }
    }
    vst1q_u16(bounds->low, low);
    vst1q_u16(bounds->high, high);
}

/* f32 bits rounded to bf16 in their upper half; the lower half holds rubbish. NaNs must have their low half clear,
 * which holds for whatever arithmetic makes of bf16 values: payloads come from an operand or are the default. */
LTX2C_INLINE uint32x4_t ltx2c_neon_round_up(float32x4_t values) {
    uint32x4_t bits = vreinterpretq_u32_f32(values);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
}

LTX2C_INLINE float32x4_t ltx2c_neon_round(float32x4_t values) {
    return vreinterpretq_f32_u32(ltx2c_neon_odd(vreinterpretq_u16_u32(ltx2c_neon_round_up(values))));
}

static void ltx2c_neon_pack_b(uint32_t *to, const char *row, size_t count, const float *scale,
                              ltx2c_bounds *bounds) {
    uint16x8_t low = vld1q_u16(bounds->low), high = vld1q_u16(bounds->high);
    for (size_t k = 0; k < count; k += 4) {
        float32x4_t values = vreinterpretq_f32_u32(vshll_n_u16(ltx2c_neon_load_half(row + 2 * k), 16));
        if (scale) values = ltx2c_neon_round(vmulq_n_f32(values, *scale));
        ltx2c_neon_bound(vreinterpretq_u16_f32(values), &low, &high);
        vst1q_u32(to + k, vreinterpretq_u32_f32(values));
    }
    vst1q_u16(bounds->low, low);
    vst1q_u16(bounds->high, high);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

typedef float32x4_t ltx2c_neon_tile[LTX2C_NEON_ROWS][LTX2C_NEON_VECTORS];

LTX2C_INLINE void ltx2c_neon_product(const int rows, const int fused, ltx2c_neon_tile sum, const uint32_t *a,
                                     const ltx2c_factors *f) {
    const uint32_t *b = f->b;
    const size_t b_stride = f->b_stride;
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < LTX2C_NEON_VECTORS; v++) sum[r][v] = vdupq_n_f32(0.0f);
    }
    for (size_t k = 0; k < f->depth; k++, a += LTX2C_NEON_PANEL) {
        float32x4_t columns[LTX2C_NEON_VECTORS];
        LTX2C_UNROLL
        for (int v = 0; v < LTX2C_NEON_VECTORS; v++) columns[v] = vreinterpretq_f32_u32(vld1q_u32(a + 4 * v));
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) {
            const float32x4_t row = vreinterpretq_f32_u32(vld1q_dup_u32(b + (size_t)r * b_stride + k));
            LTX2C_UNROLL
            for (int v = 0; v < LTX2C_NEON_VECTORS; v++)
                sum[r][v] = fused ? vfmaq_f32(sum[r][v], row, columns[v])
                                  : vaddq_f32(sum[r][v], vmulq_f32(row, columns[v]));
        }
    }
}

/* ---- Epilogue ---------------------------------------------------------------------------------------------------- */

/* The first term's aggregate: bf16(acc). */
LTX2C_INLINE void ltx2c_neon_first(const int rows, ltx2c_neon_tile sum, ltx2c_neon_tile aggregate) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < LTX2C_NEON_VECTORS; v++) aggregate[r][v] = ltx2c_neon_round(sum[r][v]);
    }
}

/* A later term's: bf16(agg + scale * acc), multiply and add rounded separately. */
LTX2C_INLINE void ltx2c_neon_later(const int rows, ltx2c_neon_tile sum, ltx2c_neon_tile aggregate, float scale) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < LTX2C_NEON_VECTORS; v++)
            aggregate[r][v] = ltx2c_neon_round(vaddq_f32(aggregate[r][v], vmulq_n_f32(sum[r][v], scale)));
    }
}

/* Stores 8 columns of a bf16 weight; canonical NaNs; how many became inf or NaN where the weight was finite. */
LTX2C_INLINE uint64_t ltx2c_neon_finish_bf16(char *out, const char *weight, float32x4_t even, float32x4_t odd) {
    const uint16x8_t top = vdupq_n_u16(0x7f80);
    uint16x8_t before = ltx2c_neon_load(weight);
    even = vaddq_f32(even, vreinterpretq_f32_u32(ltx2c_neon_even(before)));
    odd = vaddq_f32(odd, vreinterpretq_f32_u32(ltx2c_neon_odd(before)));
    uint16x8_t result = vreinterpretq_u16_u32(vbslq_u32(vdupq_n_u32(0xffff0000), ltx2c_neon_round_up(odd),
                                                        vshrq_n_u32(ltx2c_neon_round_up(even), 16)));
    uint16x8_t special = vceqq_u16(vandq_u16(result, top), top);
    if (__builtin_expect(!vmaxvq_u16(special), 1)) {
        ltx2c_neon_store(out, result);
        return 0;
    }
    uint16x8_t nan = vcgtq_u16(vandq_u16(result, vdupq_n_u16(0x7fff)), top);
    ltx2c_neon_store(out, vbslq_u16(nan, vdupq_n_u16(0x7fc0), result));
    return vaddvq_u16(vshrq_n_u16(vbicq_u16(special, vceqq_u16(vandq_u16(before, top), top)), 15));
}

/* bf16(aggregate + before) as f32, NaNs canonical; counts results of at least `limit` whose weight was finite. */
LTX2C_INLINE float32x4_t ltx2c_neon_add_wide(float32x4_t aggregate, float32x4_t before, uint32_t limit,
                                             uint64_t *nonfinite) {
    const uint32x4_t magnitude = vdupq_n_u32(0x7fffffff);
    float32x4_t sum = vaddq_f32(aggregate, before);
    uint32x4_t rounded = vreinterpretq_u32_f32(ltx2c_neon_round(sum));
    uint32x4_t result = vbslq_u32(vceqq_f32(sum, sum), rounded, vdupq_n_u32(0x7fc00000));
    uint32x4_t finite = vcltq_u32(vandq_u32(vreinterpretq_u32_f32(before), magnitude), vdupq_n_u32(0x7f800000));
    uint32x4_t lost = vandq_u32(vcgeq_u32(vandq_u32(result, magnitude), vdupq_n_u32(limit)), finite);
    *nonfinite += vaddvq_u32(vshrq_n_u32(lost, 31));
    return vreinterpretq_f32_u32(result);
}

/* 8 columns of an f32 or f16 weight: the aggregate goes back to natural column order first. */
LTX2C_INLINE uint64_t ltx2c_neon_finish_wide(char *out, const char *weight, float32x4_t even, float32x4_t odd,
                                             ltx2c_dtype dtype) {
    const float32x4_t aggregate[2] = {vzip1q_f32(even, odd), vzip2q_f32(even, odd)};
    uint64_t nonfinite = 0;
    LTX2C_UNROLL
    for (int half = 0; half < 2; half++) {
        if (dtype == LTX2C_F32) {
            float32x4_t before = vreinterpretq_f32_u16(ltx2c_neon_load(weight + 16 * half));
            float32x4_t sum = ltx2c_neon_add_wide(aggregate[half], before, 0x7f800000, &nonfinite);
            ltx2c_neon_store(out + 16 * half, vreinterpretq_u16_f32(sum));
        } else { /* from 65536 on a bf16 value becomes inf in f16 */
            float16x4_t stored = vreinterpret_f16_u16(ltx2c_neon_load_half(weight + 8 * half));
            float32x4_t sum = ltx2c_neon_add_wide(aggregate[half], vcvt_f32_f16(stored), 0x47800000, &nonfinite);
            vst1_u8((uint8_t *)out + 8 * half, vreinterpret_u8_f16(vcvt_f16_f32(sum)));
        }
    }
    return nonfinite;
}

/* ---- Strips ------------------------------------------------------------------------------------------------------ */

/* One term's sum for panel p. */
LTX2C_INLINE void ltx2c_neon_term(const int rows, const ltx2c_factors *f, size_t p, ltx2c_neon_tile sum) {
    const uint32_t *a = f->a + p * f->depth * LTX2C_NEON_PANEL;
    if (ltx2c_exact_mode(f->a_range[p / LTX2C_NEON_UNIT], f->b_range) == LTX2C_MULADD)
        ltx2c_neon_product(rows, 0, sum, a, f);
    else
        ltx2c_neon_product(rows, 1, sum, a, f);
}

LTX2C_INLINE uint64_t ltx2c_neon_rows(const int rows, const ltx2c_strip *s) {
    const size_t itemsize = ltx2c_itemsize(s->dtype), panel_bytes = LTX2C_NEON_PANEL * itemsize;
    const char *weight = s->weight;
    char *out = s->out;
    uint64_t nonfinite = 0;
    for (size_t p = s->first; p < s->last; p++, out += panel_bytes, weight += panel_bytes) {
        ltx2c_neon_tile sum, aggregate;
        ltx2c_neon_term(rows, s->terms, p, sum);
        ltx2c_neon_first(rows, sum, aggregate);
        for (size_t t = 1; t < s->term_count; t++) {
            ltx2c_neon_term(rows, &s->terms[t], p, sum);
            ltx2c_neon_later(rows, sum, aggregate, s->terms[t].scale);
        }
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) {
            LTX2C_UNROLL
            for (int half = 0; half < 2; half++) {
                char *to = out + r * s->out_stride + 8 * half * itemsize;
                const char *from = weight + r * s->weight_stride + 8 * half * itemsize;
                const float32x4_t even = aggregate[r][2 * half], odd = aggregate[r][2 * half + 1];
                nonfinite += s->dtype == LTX2C_BF16 ? ltx2c_neon_finish_bf16(to, from, even, odd)
                                                    : ltx2c_neon_finish_wide(to, from, even, odd, s->dtype);
            }
        }
    }
    return nonfinite;
}

static uint64_t ltx2c_neon_rows_1(const ltx2c_strip *s) { return ltx2c_neon_rows(1, s); }
static uint64_t ltx2c_neon_rows_2(const ltx2c_strip *s) { return ltx2c_neon_rows(2, s); }
static uint64_t ltx2c_neon_rows_3(const ltx2c_strip *s) { return ltx2c_neon_rows(3, s); }
static uint64_t ltx2c_neon_rows_4(const ltx2c_strip *s) { return ltx2c_neon_rows(4, s); }
static uint64_t ltx2c_neon_rows_5(const ltx2c_strip *s) { return ltx2c_neon_rows(5, s); }
static uint64_t ltx2c_neon_rows_6(const ltx2c_strip *s) { return ltx2c_neon_rows(6, s); }

static uint64_t ltx2c_neon_strip(const ltx2c_strip *s) {
    static uint64_t (*const by_rows[])(const ltx2c_strip *) = {ltx2c_neon_rows_1, ltx2c_neon_rows_2, ltx2c_neon_rows_3,
                                                               ltx2c_neon_rows_4, ltx2c_neon_rows_5, ltx2c_neon_rows_6};
    return by_rows[s->rows - 1](s);
}

static float ltx2c_neon_peak(float seed) {
    const float32x4_t value = vdupq_n_f32(seed);
    float32x4_t sum[24];
    LTX2C_UNROLL
    for (int v = 0; v < 24; v++) sum[v] = vdupq_n_f32(seed * (float)v);
    for (size_t k = 0; k < LTX2C_PEAK_STEPS; k++) {
        LTX2C_UNROLL
        for (int v = 0; v < 24; v++) sum[v] = vfmaq_f32(sum[v], value, value);
    }
    float32x4_t total = vdupq_n_f32(0.0f);
    LTX2C_UNROLL
    for (int v = 0; v < 24; v++) total = vaddq_f32(total, sum[v]);
    return vaddvq_f32(total);
}

static const ltx2c_kernel ltx2c_neon = {
    .name = "neon",
    .obstacle = ltx2c_neon_obstacle,
    .panel = LTX2C_NEON_PANEL,
    .rows = LTX2C_NEON_ROWS,
    .pair = 1,
    .pack_a = ltx2c_neon_pack_a,
    .pack_b = ltx2c_neon_pack_b,
    .strip = ltx2c_neon_strip,
    .peak_macs = (uint64_t)LTX2C_PEAK_STEPS * 24 * 4,
    .peak = ltx2c_neon_peak,
};

#endif
#endif
