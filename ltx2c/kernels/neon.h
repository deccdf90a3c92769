/* neon: the SIMD that every aarch64 machine has, with FMLA.
 *
 * Register tile: 6 rows by a panel of 16 columns: 24 accumulators, 4 words of A, a broadcast of B: 29 of 32 registers.
 *
 * A panel holds, for each 8 columns, the 4 even ones and then the 4 odd ones, the order in which a vector of 8 bf16
 * splits into two of f32 by one shift and one mask.
 */
#if defined(__aarch64__) && !defined(LTX2C_WITHOUT_NEON)
#ifdef LTX2C_LISTING
&ltx2c_neon,
#elif !defined(LTX2C_NEON_H)
#define LTX2C_NEON_H

#include <arm_neon.h>

#include "core.h"

enum {
    ltx2c_neon_mr = 6,
    ltx2c_neon_lanes = 4,
    ltx2c_neon_vectors = 4,
    LTX2C_NEON_PANEL = 16,
    LTX2C_NEON_UNIT = (int)LTX2C_UNIT / LTX2C_NEON_PANEL /* panels */
};

typedef float32x4_t ltx2c_neon_vector;
typedef uint16x8_t ltx2c_neon_halves;
typedef float32x4_t ltx2c_neon_tile[ltx2c_neon_mr][ltx2c_neon_vectors];

static const char *ltx2c_neon_unsupported(void) { return NULL; }

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* By bytes: loads and stores of wider elements may assume their alignment. */
LTX2C_INLINE uint16x8_t ltx2c_neon_load_halves(const char *from) {
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)from));
}

LTX2C_INLINE uint16x4_t ltx2c_neon_load_half(const char *from) {
    return vreinterpret_u16_u8(vld1_u8((const uint8_t *)from));
}

LTX2C_INLINE void ltx2c_neon_store_bf16(char *to, uint16x8_t halves) {
    vst1q_u8((uint8_t *)to, vreinterpretq_u8_u16(halves));
}

LTX2C_INLINE float32x4_t ltx2c_neon_load(const char *from) {
    return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)from));
}

LTX2C_INLINE void ltx2c_neon_store(char *to, float32x4_t v) { vst1q_u8((uint8_t *)to, vreinterpretq_u8_f32(v)); }

LTX2C_INLINE float32x4_t ltx2c_neon_load_f16(const char *from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(ltx2c_neon_load_half(from)));
}

LTX2C_INLINE void ltx2c_neon_store_f16(char *to, float32x4_t v) {
    vst1_u8((uint8_t *)to, vreinterpret_u8_f16(vcvt_f16_f32(v)));
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
            uint16x8_t values = ltx2c_neon_load_halves(row);
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

static void ltx2c_neon_pack_b(uint32_t *to, const char *row, size_t count, const float *strength,
                              ltx2c_bounds *bounds) {
    uint16x8_t low = vld1q_u16(bounds->low), high = vld1q_u16(bounds->high);
    for (size_t k = 0; k < count; k += 4) {
        float32x4_t values = vreinterpretq_f32_u32(vshll_n_u16(ltx2c_neon_load_half(row + 2 * k), 16));
        if (strength) values = ltx2c_neon_round(vmulq_n_f32(values, *strength));
        ltx2c_neon_bound(vreinterpretq_u16_f32(values), &low, &high);
        vst1q_u32(to + k, vreinterpretq_u32_f32(values));
    }
    vst1q_u16(bounds->low, low);
    vst1q_u16(bounds->high, high);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

LTX2C_INLINE void ltx2c_neon_product(const int rows, const int fused, ltx2c_neon_tile sum, const uint32_t *a,
                                     const ltx2c_factors *f) {
    const uint32_t *b = f->b;
    const size_t b_stride = f->b_stride;
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < ltx2c_neon_vectors; v++) sum[r][v] = vdupq_n_f32(0.0f);
    }
    for (size_t k = 0; k < f->depth; k++, a += LTX2C_NEON_PANEL) {
        float32x4_t columns[ltx2c_neon_vectors];
        LTX2C_UNROLL
        for (int v = 0; v < ltx2c_neon_vectors; v++) columns[v] = vreinterpretq_f32_u32(vld1q_u32(a + 4 * v));
        LTX2C_UNROLL
        for (int r = 0; r < rows; r++) {
#if defined(__clang__)
            const float32x4_t row = vreinterpretq_f32_u32(vld1q_dup_u32(b + (size_t)r * b_stride + k));
            LTX2C_UNROLL
            for (int v = 0; v < ltx2c_neon_vectors; v++)
                sum[r][v] = fused ? vfmaq_f32(sum[r][v], row, columns[v])
                                  : vaddq_f32(sum[r][v], vmulq_f32(row, columns[v]));
#else /* GCC 12 asks for all six values of B before the first FMLA, and keeps sums on the stack for want of registers */
            float row;
            memcpy(&row, b + (size_t)r * b_stride + k, sizeof row);
            LTX2C_UNROLL
            for (int v = 0; v < ltx2c_neon_vectors; v++)
                sum[r][v] = fused ? vfmaq_n_f32(sum[r][v], columns[v], row)
                                  : vaddq_f32(sum[r][v], vmulq_n_f32(columns[v], row));
            __asm__ volatile("" : "+w"(sum[r][ltx2c_neon_vectors - 1]) : : "memory"); /* the next load comes after */
#endif
        }
    }
}

/* One term's product for panel p. Under F32 every step is fused. */
LTX2C_INLINE void ltx2c_neon_term(const int rows, const int f32, const ltx2c_factors *f, size_t p,
                                  ltx2c_neon_tile sum) {
    const uint32_t *a = f->a + p * f->depth * LTX2C_NEON_PANEL;
    if (f32 || ltx2c_exact_mode(f->a_range[p / LTX2C_NEON_UNIT], f->b_range) != LTX2C_MULADD)
        ltx2c_neon_product(rows, 1, sum, a, f);
    else
        ltx2c_neon_product(rows, 0, sum, a, f);
}

/* ---- Vectors, for tile.h ----------------------------------------------------------------------------------------- */

LTX2C_INLINE float32x4_t ltx2c_neon_splat(float value) { return vdupq_n_f32(value); }
LTX2C_INLINE float32x4_t ltx2c_neon_add(float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); }
LTX2C_INLINE float32x4_t ltx2c_neon_mul(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
LTX2C_INLINE float32x4_t ltx2c_neon_kept(const float *from) { return vld1q_f32(from); }
LTX2C_INLINE void ltx2c_neon_keep(float *to, float32x4_t v) { vst1q_f32(to, v); }

LTX2C_INLINE void ltx2c_neon_split(float32x4_t left, float32x4_t right, float32x4_t *even, float32x4_t *odd) {
    *even = vuzp1q_f32(left, right);
    *odd = vuzp2q_f32(left, right);
}

LTX2C_INLINE void ltx2c_neon_join(float32x4_t even, float32x4_t odd, float32x4_t *left, float32x4_t *right) {
    *left = vzip1q_f32(even, odd);
    *right = vzip2q_f32(even, odd);
}

LTX2C_INLINE void ltx2c_neon_get_bf16(const char *from, float32x4_t *even, float32x4_t *odd) {
    const uint16x8_t halves = ltx2c_neon_load_halves(from);
    *even = vreinterpretq_f32_u32(ltx2c_neon_even(halves));
    *odd = vreinterpretq_f32_u32(ltx2c_neon_odd(halves));
}

LTX2C_INLINE uint16x8_t ltx2c_neon_to_bf16(float32x4_t even, float32x4_t odd) {
    return vreinterpretq_u16_u32(vbslq_u32(vdupq_n_u32(0xffff0000), ltx2c_neon_round_up(odd),
                                           vshrq_n_u32(ltx2c_neon_round_up(even), 16)));
}

LTX2C_INLINE int ltx2c_neon_special_bf16(uint16x8_t halves) {
    const uint16x8_t top = vdupq_n_u16(0x7f80);
    return vmaxvq_u16(vceqq_u16(vandq_u16(halves, top), top)) != 0;
}

LTX2C_INLINE float32x4_t ltx2c_neon_canonical(float32x4_t v) {
    return vreinterpretq_f32_u32(vbslq_u32(vceqq_f32(v, v), vreinterpretq_u32_f32(v), vdupq_n_u32(0x7fc00000)));
}

LTX2C_INLINE int ltx2c_neon_any_at_least(float32x4_t even, float32x4_t odd, uint32_t limit) {
    const uint32x4_t magnitude = vdupq_n_u32(0x7fffffff);
    return vmaxvq_u32(vmaxq_u32(vandq_u32(vreinterpretq_u32_f32(even), magnitude),
                                vandq_u32(vreinterpretq_u32_f32(odd), magnitude))) >= limit;
}

/* The CPU sees the streams of weights by itself. */
LTX2C_INLINE void ltx2c_neon_prefetch(const int rows, const char *weight, ptrdiff_t stride, size_t panel_bytes) {
    (void)rows, (void)weight, (void)stride, (void)panel_bytes;
}

#define LTX2C_VECTOR(name) ltx2c_neon_##name
#define LTX2C_TILE(name) ltx2c_neon_##name
#include "tile.h"

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

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
    .unsupported = ltx2c_neon_unsupported,
    .panel = LTX2C_NEON_PANEL,
    .rows = ltx2c_neon_mr,
    .pair = 1,
    .blocking = {.panel_bytes = 24 << 10, .b_bytes = 256 << 10, .rows = 252, .stream_rows = 60, .columns = 1024},
    .pack_a = ltx2c_neon_pack_a,
    .pack_a_wide = ltx2c_neon_pack_a_wide,
    .pack_b_wide = ltx2c_neon_pack_b_wide,
    .pack_b = ltx2c_neon_pack_b,
    .strip = ltx2c_neon_strip_by_rows,
    .peak_macs = (uint64_t)LTX2C_PEAK_STEPS * 24 * 4,
    .peak = ltx2c_neon_peak,
};

#endif
#endif
