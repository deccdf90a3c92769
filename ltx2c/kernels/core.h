/* What every kernel shares: the words of the interface between driver and kernels, and the contract's scalar roundings.
 *
 * The driver (driver.h) cuts work into blocks, packs, and walks the tiles; a kernel (one header per instruction set)
 * packs rows into its own layout and computes strips of tiles. All numbers a kernel sees are 32-bit words: one f32
 * value, or a pair of bf16 values, per k and column.
 */
#ifndef LTX2C_CORE_H
#define LTX2C_CORE_H

#ifdef __FAST_MATH__
#error "ltx2c computes exact bytes: compile without -ffast-math"
#endif

#include <string.h>

#include "types.h"

#ifndef LTX2C_API /* the calls of types.h's batches: ltx2c.h gives them to other units too */
#define LTX2C_API static
#endif

#define LTX2C_INLINE static inline __attribute__((always_inline))
#define LTX2C_APART static __attribute__((noinline)) /* rare work that must not take registers from common work */

/* Compiled once per width of vectors, and the loader picks: loops in plain C that compilers vectorise. */
#ifdef LTX2C_CLONES_BUILD
#define LTX2C_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define LTX2C_CLONES
#endif

#if defined(__clang__)
#define LTX2C_UNROLL _Pragma("unroll")
#else
#define LTX2C_UNROLL _Pragma("GCC unroll 24")
#endif

LTX2C_INLINE size_t ltx2c_itemsize(ltx2c_dtype dtype) { return dtype == LTX2C_F32 ? 4 : 2; }

/* What the steps ask of an arithmetic: whether factors and aggregates are rounded to bf16, the first term's B scaled
 * before its product; whether the sum is rounded to bf16 before it is stored; whether the total starts at the weight. */
LTX2C_INLINE int ltx2c_through_bf16(ltx2c_arithmetic arithmetic) { return arithmetic != LTX2C_ARITHMETIC_F32; }
LTX2C_INLINE int ltx2c_rounds_sum(ltx2c_arithmetic arithmetic) { return arithmetic == LTX2C_ARITHMETIC_LTX; }
LTX2C_INLINE int ltx2c_starts_at_weight(ltx2c_arithmetic arithmetic) { return arithmetic == LTX2C_ARITHMETIC_F32; }

LTX2C_INLINE int ltx2c_is_full(const ltx2c_term *term) { return term->full.data || term->kronecker.one; }

/* ---- The guard --------------------------------------------------------------------------------------------------- */

/* Biased 8-bit exponent fields of the smallest nonzero and of the largest magnitude. All zeros: {512, 0}. */
typedef struct {
    unsigned low, high;
} ltx2c_range;

/* Running 16-bit bounds, 32 lanes wide so that a kernel updates them with one minimum and one maximum per vector:
 * `low` holds the minimum of (magnitude - 1), which hides zeros behind 0xffff; `high` the maximum of the magnitude. */
typedef struct {
    uint16_t low[32], high[32];
} __attribute__((aligned(64))) ltx2c_bounds;

LTX2C_INLINE void ltx2c_bounds_open(ltx2c_bounds *bounds) {
    memset(bounds->low, 0xff, sizeof bounds->low);
    memset(bounds->high, 0, sizeof bounds->high);
}

LTX2C_INLINE ltx2c_range ltx2c_bounds_close(const ltx2c_bounds *bounds) {
    unsigned low = 0xffff, high = 0;
    for (int i = 0; i < 32; i++) {
        low = bounds->low[i] < low ? bounds->low[i] : low;
        high = bounds->high[i] > high ? bounds->high[i] : high;
    }
    return (ltx2c_range){(low + 1) >> 7, high >> 7};
}

typedef enum { LTX2C_DOT, LTX2C_FMA, LTX2C_MULADD } ltx2c_mode;

/* Which instruction gives the bits of multiply, round, add, round for bf16 factors in these ranges. Under F32, whose step
 * is a fused multiply-add, DOT's bound holds alike, and FMA is always right.
 *
 * DOT (bf16 dot product, flushing denormals): every product is a multiple of 2^(eA_min + eB_min - 268). From 142 on
 * that unit is at least 2^-126, so every partial sum is zero or normal and nothing can be flushed.
 * FMA: the product must be exact in f32. Its lowest bit is at least 2^-149 from 119 on (denormals have exponent 1).
 * Both: up to 380 no product overflows; beyond, a fused multiply-add can stay finite where the contract does not. */
LTX2C_INLINE ltx2c_mode ltx2c_exact_mode(ltx2c_range a, ltx2c_range b) {
    if (a.high == 255 || b.high == 255 || a.high + b.high > 380) return LTX2C_MULADD;
    if (a.low && b.low && a.low + b.low >= 142) return LTX2C_DOT;
    return (a.low ? a.low : 1) + (b.low ? b.low : 1) >= 119 ? LTX2C_FMA : LTX2C_MULADD;
}

/* ---- Strips: what a kernel computes ------------------------------------------------------------------------------ */

/* One term of a strip: packed factors, or rows of a full matrix. */
typedef struct {
    const uint32_t *a;         /* panel 0: words [depth][panel columns], 64-byte aligned, panels adjacent */
    const ltx2c_range *a_range; /* per unit of LTX2C_UNIT columns; of bf16 factors only */
    const uint32_t *b;         /* words [rows][b_stride]: scaled already if this is LTX's first term */
    size_t b_stride;
    ltx2c_range b_range;
    size_t depth;              /* words per column */
    int wide;                  /* a word is one f32 value, whatever the kernel's words of bf16 factors are */
    float strength;
    const char *full;          /* at the strip's first row and panel `first`; NULL in a term of low rank */
    ptrdiff_t full_stride;
    ltx2c_dtype full_dtype;
} ltx2c_factors;

/* `rows` rows of the weight by panels [first, last): for each panel the terms' products, chained, then the weight. */
typedef struct {
    const ltx2c_factors *terms;
    size_t term_count;
    size_t rows;
    size_t first, last;
    const char *weight; /* at panel `first` */
    char *out;
    ptrdiff_t weight_stride, out_stride;
    ltx2c_dtype dtype;
    ltx2c_arithmetic arithmetic;
} ltx2c_strip;

enum {
    LTX2C_UNIT = 512,    /* columns packed at a time: one visit per row of A touches all their panels */
    LTX2C_CHUNK = 512,   /* values handed to a packing function at a time */
    LTX2C_MAX_PANEL = 64, /* columns */
    LTX2C_PEAK_STEPS = 200000
};

/* How a kernel wants weights cut, by the caches of the CPUs that it is for. */
typedef struct {
    size_t panel_bytes;  /* a panel of A up to this size stays in L1, next to B and the weight, while it meets one tile
                            of rows after the other; a larger one meets all rows of a block first */
    size_t b_bytes;      /* packed B of a block stays in L2 */
    size_t rows;         /* of a block, at most */
    size_t stream_rows;  /* of a block whose panels stay in L1 */
    size_t columns;      /* of a block that is cut by columns too */
} ltx2c_blocking;

struct ltx2c_kernel {
    const char *name;
    const char *(*unsupported)(void); /* NULL where the kernel runs; else what this CPU lacks, for people to read */
    unsigned panel; /* columns of a panel */
    unsigned rows;  /* most rows of a register tile */
    unsigned pair;  /* values of k in one word: 1 (f32) or 2 (bf16 pair) */
    ltx2c_blocking blocking;
    /* Packs `panels` panels' worth of columns of one k (two when pair is 2: `next` is the row of k + 1) into
     * to[panel * panel_words]. Rows are of bf16, at any address. */
    void (*pack_a)(uint32_t *to, size_t panel_words, const char *row, const char *next, size_t panels,
                   ltx2c_bounds *bounds);
    /* The same for one k as f32, from rows of any dtype. */
    void (*pack_a_wide)(uint32_t *to, size_t panel_words, const char *row, ltx2c_dtype dtype, size_t panels);
    /* The same for `count` values of one row of B, any number. */
    void (*pack_b_wide)(uint32_t *to, const char *row, ltx2c_dtype dtype, size_t count);
    /* Packs `count` bf16 values of one row of B, a multiple of 32, times `strength` and rounded to bf16 unless NULL. */
    void (*pack_b)(uint32_t *to, const char *row, size_t count, const float *strength, ltx2c_bounds *bounds);
    /* Computes a strip; returns how many values became inf or NaN where the weight was finite. */
    uint64_t (*strip)(const ltx2c_strip *strip);
    /* Multiply-adds per call of `peak`, which does nothing but the strip's innermost instruction, on registers. */
    uint64_t peak_macs;
    float (*peak)(float seed);
};

/* ---- The contract's scalar conversions --------------------------------------------------------------------------- */

LTX2C_INLINE uint32_t ltx2c_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

LTX2C_INLINE float ltx2c_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

LTX2C_INLINE float ltx2c_from_bf16(uint16_t half) { return ltx2c_float((uint32_t)half << 16); }

/* To nearest, ties to even. Any NaN becomes the canonical one. */
LTX2C_INLINE uint16_t ltx2c_to_bf16(float value) {
    uint32_t bits = ltx2c_bits(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

LTX2C_INLINE float ltx2c_from_f16(uint16_t half) {
    uint32_t magnitude = half & 0x7fff;
    uint32_t rebias = (magnitude >= 0x7c00 ? 224u : 112u) << 23; /* inf and NaN go from exponent 31 to 255 */
    uint32_t denormal = ltx2c_bits((float)magnitude * 0x1p-24f);
    uint32_t bits = magnitude < 0x400 ? denormal : (magnitude << 13) + rebias;
    return ltx2c_float(bits | (uint32_t)(half & 0x8000) << 16);
}

/* To nearest, ties to even. Any NaN becomes the canonical one. */
LTX2C_INLINE uint16_t ltx2c_to_f16(float value) {
    uint32_t bits = ltx2c_bits(value), magnitude = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
    if (magnitude > 0x7f800000) return 0x7e00;
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    /* 0.5 has an ulp of 2^-24, the unit of f16's denormals: the addition does the rounding. */
    if (magnitude < 0x38800000) return (uint16_t)(sign | (ltx2c_bits(ltx2c_float(magnitude) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13));
}

/* The 16 bits of element `index`, at any address. */
LTX2C_INLINE uint16_t ltx2c_half(const char *from, size_t index) {
    uint16_t half;
    memcpy(&half, from + index * sizeof half, sizeof half);
    return half;
}

LTX2C_INLINE float ltx2c_load(const char *from, size_t index, ltx2c_dtype dtype) {
    if (dtype == LTX2C_F32) {
        float value;
        memcpy(&value, from + index * sizeof value, sizeof value);
        return value;
    }
    const uint16_t half = ltx2c_half(from, index);
    return dtype == LTX2C_BF16 ? ltx2c_from_bf16(half) : ltx2c_from_f16(half);
}

/* b * a + c, rounded once. In double the product is exact, and the sum is rounded to odd: where it is not exact and its
 * last bit is even, it moves one step towards what was lost (TwoSum). The second rounding, to f32, is then right. */
LTX2C_INLINE float ltx2c_fma(float b, float a, float c) {
    const double product = (double)b * a, addend = c, sum = product + addend;
    const double part = sum - product, lost = (product - (sum - part)) + (addend - part);
    int64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    const int inexact = lost > 0 || lost < 0; /* neither where the sum is inf or NaN: then it is NaN */
    if (inexact && !(bits & 1)) bits += (lost > 0) == (sum > 0) ? 1 : -1;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}

/* ---- Results that are inf or NaN --------------------------------------------------------------------------------- */

/* Some columns of a row whose stored result has such a value, and what the weight was: looked at after the tile, for
 * within it there is no register to spare. They are few. */
typedef struct {
    char *out;
    char before[LTX2C_MAX_PANEL * 2];
} ltx2c_doubt;

/* Makes NaNs canonical; counts the values that the weight did not bring along. */
__attribute__((unused)) LTX2C_APART uint64_t ltx2c_settle(const ltx2c_doubt *doubt, const ltx2c_doubt *end,
                                                          size_t columns, ltx2c_dtype dtype) {
    static const uint32_t nan[] = {0x7fc0, 0x7fc00000, 0x7e00};
    uint64_t nonfinite = 0;
    for (; doubt < end; doubt++)
        for (size_t c = 0; c < columns; c++) {
            const uint32_t magnitude = ltx2c_bits(ltx2c_load(doubt->out, c, dtype)) & 0x7fffffff;
            if (magnitude < 0x7f800000) continue;
            nonfinite += (ltx2c_bits(ltx2c_load(doubt->before, c, dtype)) & 0x7f800000) != 0x7f800000;
            if (magnitude > 0x7f800000) {
                const uint16_t half = (uint16_t)nan[dtype];
                char *at = doubt->out + c * ltx2c_itemsize(dtype);
                memcpy(at, dtype == LTX2C_F32 ? (const void *)&nan[dtype] : &half, ltx2c_itemsize(dtype));
            }
        }
    return nonfinite;
}

#endif
