/* Codes to values and back, for weights that are stored as FP8: what stands between a stored layout and the kernels.
 *
 * Everything here works on a piece of a row, in plain C that compilers vectorise: branch-free, in 32-bit lanes. Each
 * such loop is compiled once per width of vectors, and the loader picks (LTX2C_CLONES); the arithmetic is in integers or
 * in single IEEE operations, so all of them give the same bytes. Arrays may lie at any address.
 */
#ifndef LTX2C_CODECS_H
#define LTX2C_CODECS_H

#include "core.h"
#include "environment.h"

#ifdef LTX2C_CLONES_BUILD
#define LTX2C_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define LTX2C_CLONES
#endif

typedef enum { LTX2C_E4M3 = 0, LTX2C_E5M2 = 1 } ltx2c_fp8;

/* What encoding a stretch of values came to. */
typedef struct {
    uint64_t changed;     /* codes that are others than before */
    uint64_t nonfinite;   /* results that are infinite or NaN where the code before was finite */
    uint64_t unencodable; /* values of granules that have no scale: an infinity, a NaN, or all of them too small */
} ltx2c_tally;

static inline void ltx2c_add_tally(ltx2c_tally *sum, ltx2c_tally more) {
    sum->changed += more.changed;
    sum->nonfinite += more.nonfinite;
    sum->unencodable += more.unencodable;
}

/* ---- One value --------------------------------------------------------------------------------------------------- */

LTX2C_INLINE int ltx2c_fp8_finite(uint8_t code, ltx2c_fp8 kind) {
    return kind == LTX2C_E4M3 ? (code & 0x7f) != 0x7f : (code & 0x7c) != 0x7c;
}

/* The bits of an f32, exactly. Any NaN becomes the canonical one. */
LTX2C_INLINE uint32_t ltx2c_fp8_bits(uint8_t code, ltx2c_fp8 kind) {
    const uint32_t magnitude = code & 0x7f, sign = (uint32_t)(code & 0x80) << 24;
    const int mantissa = kind == LTX2C_E4M3 ? 3 : 2;
    const uint32_t rebias = kind == LTX2C_E4M3 ? 127 - 7 : 127 - 15;
    const float unit = kind == LTX2C_E4M3 ? 0x1p-9f : 0x1p-16f; /* of the codes below the smallest normal one */
    const uint32_t normal = (magnitude << (23 - mantissa)) + (rebias << 23);
    const uint32_t denormal = ltx2c_bits((float)(int32_t)magnitude * unit);
    uint32_t bits = magnitude < (1u << mantissa) ? denormal : normal;
    if (kind == LTX2C_E4M3) return magnitude == 0x7f ? 0x7fc00000 : bits | sign;
    bits = magnitude == 0x7c ? 0x7f800000 : bits;
    return magnitude > 0x7c ? 0x7fc00000 : bits | sign;
}

/* To nearest, ties to even. e4m3 saturates at 448, infinities too; e5m2 overflows to infinity. Any NaN becomes the
 * canonical one. */
LTX2C_INLINE uint8_t ltx2c_to_fp8(float value, ltx2c_fp8 kind) {
    const uint32_t bits = ltx2c_bits(value), magnitude = bits & 0x7fffffff, sign = (bits >> 24) & 0x80;
    const int dropped = kind == LTX2C_E4M3 ? 20 : 21; /* bits of the mantissa */
    const uint32_t rebias = kind == LTX2C_E4M3 ? 127 - 7 : 127 - 15;
    const uint32_t largest = kind == LTX2C_E4M3 ? 0x7e : 0x7c;
    /* A number whose ulp is the unit of the codes below the smallest normal one: the addition does the rounding. */
    const float anchor = kind == LTX2C_E4M3 ? 0x1p14f : 0x1p7f;
    const uint32_t denormal = ltx2c_bits(ltx2c_float(magnitude) + anchor) - ltx2c_bits(anchor);
    const uint32_t rounded = magnitude + ((1u << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1);
    const uint32_t normal = (rounded >> dropped) - (rebias << (23 - dropped));
    uint32_t code = magnitude < (rebias + 1) << 23 ? denormal : normal;
    code = magnitude >= 0x7f800000 || code > largest ? largest : code;
    return (uint8_t)(magnitude > 0x7f800000 ? (kind == LTX2C_E4M3 ? 0x7f : 0x7e) : code | sign);
}

/* ---- A piece of a row -------------------------------------------------------------------------------------------- */

/* Values are bf16, or f32 where `wide`. */
LTX2C_INLINE float ltx2c_value(const void *values, size_t index, int wide) {
    return ltx2c_load((const char *)values, index, wide ? LTX2C_F32 : LTX2C_BF16);
}

LTX2C_INLINE void ltx2c_decode_loop(const uint8_t *codes, void *values, size_t count, int wide, ltx2c_fp8 kind,
                                    const float *scale) {
    const float factor = scale ? *scale : 1.0f;
    for (size_t i = 0; i < count; i++) {
        const uint32_t exact = ltx2c_fp8_bits(codes[i], kind);
        if (wide) {
            const float value = scale ? ltx2c_float(exact) * factor : ltx2c_float(exact);
            memcpy((char *)values + i * sizeof value, &value, sizeof value);
        } else { /* a code alone is exact in bf16 */
            const uint16_t half = scale ? ltx2c_to_bf16(ltx2c_float(exact) * factor) : (uint16_t)(exact >> 16);
            memcpy((char *)values + i * sizeof half, &half, sizeof half);
        }
    }
}

/* values = codes, times `*scale` unless it is NULL; then rounded to bf16 unless `wide`. */
LTX2C_CLONES static void ltx2c_decode_piece(const uint8_t *codes, void *values, size_t count, int wide, ltx2c_fp8 kind,
                                            const float *scale) {
    if (kind == LTX2C_E5M2) {
        if (wide)
            ltx2c_decode_loop(codes, values, count, 1, LTX2C_E5M2, NULL);
        else
            ltx2c_decode_loop(codes, values, count, 0, LTX2C_E5M2, NULL);
    } else if (scale) {
        if (wide)
            ltx2c_decode_loop(codes, values, count, 1, LTX2C_E4M3, scale);
        else
            ltx2c_decode_loop(codes, values, count, 0, LTX2C_E4M3, scale);
    } else if (wide) {
        ltx2c_decode_loop(codes, values, count, 1, LTX2C_E4M3, NULL);
    } else {
        ltx2c_decode_loop(codes, values, count, 0, LTX2C_E4M3, NULL);
    }
}

LTX2C_INLINE ltx2c_tally ltx2c_encode_loop(const void *values, uint8_t *codes, size_t count, int wide, ltx2c_fp8 kind,
                                           const float *multiplier) {
    const float factor = multiplier ? *multiplier : 1.0f;
    uint32_t changed = 0, nonfinite = 0;
    for (size_t i = 0; i < count; i++) {
        const float value = ltx2c_value(values, i, wide);
        const uint8_t before = codes[i], code = ltx2c_to_fp8(multiplier ? value * factor : value, kind);
        changed += code != before;
        nonfinite += (!ltx2c_fp8_finite(code, kind)) & ltx2c_fp8_finite(before, kind);
        codes[i] = code;
    }
    return (ltx2c_tally){.changed = changed, .nonfinite = nonfinite};
}

/* codes = values, times `*multiplier` unless it is NULL; saturating as `ltx2c_to_fp8` does. */
LTX2C_CLONES static ltx2c_tally ltx2c_encode_piece(const void *values, uint8_t *codes, size_t count, int wide,
                                                   ltx2c_fp8 kind, const float *multiplier) {
    if (kind == LTX2C_E5M2)
        return wide ? ltx2c_encode_loop(values, codes, count, 1, LTX2C_E5M2, NULL)
                    : ltx2c_encode_loop(values, codes, count, 0, LTX2C_E5M2, NULL);
    if (multiplier)
        return wide ? ltx2c_encode_loop(values, codes, count, 1, LTX2C_E4M3, multiplier)
                    : ltx2c_encode_loop(values, codes, count, 0, LTX2C_E4M3, multiplier);
    return wide ? ltx2c_encode_loop(values, codes, count, 1, LTX2C_E4M3, NULL)
                : ltx2c_encode_loop(values, codes, count, 0, LTX2C_E4M3, NULL);
}

LTX2C_INLINE uint32_t ltx2c_largest_loop(const void *values, size_t count, int wide) {
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = ltx2c_bits(ltx2c_value(values, i, wide)) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* The bits of the largest magnitude as an f32; those of an infinity or a NaN are larger than any other. */
LTX2C_CLONES static uint32_t ltx2c_largest_piece(const void *values, size_t count, int wide) {
    return wide ? ltx2c_largest_loop(values, count, 1) : ltx2c_largest_loop(values, count, 0);
}

/* ---- Granules: values that share a scale ------------------------------------------------------------------------- */

/* What values are multiplied by before they are encoded; 0 where the largest of them allows no scale. */
static inline float ltx2c_multiplier(uint32_t largest) {
    if (largest >= 0x7f800000) return 0.0f;
    const float multiplier = 1.0f / ltx2c_float(largest) * 448.0f;
    return ltx2c_bits(multiplier) < 0x7f800000 ? multiplier : 0.0f;
}

typedef struct {
    char *data;
    ptrdiff_t stride; /* bytes from row to row */
} ltx2c_rows;

/* `rows` x `columns` values and the codes that they become, or come from. */
typedef struct {
    ltx2c_rows values, codes;
    size_t rows, columns;
    int wide;
    ltx2c_fp8 kind;
} ltx2c_patch;

static uint32_t ltx2c_largest(const ltx2c_patch *patch) {
    uint32_t largest = 0;
    for (size_t row = 0; row < patch->rows; row++) {
        const uint32_t here =
            ltx2c_largest_piece(patch->values.data + (ptrdiff_t)row * patch->values.stride, patch->columns, patch->wide);
        largest = here > largest ? here : largest;
    }
    return largest;
}

static void ltx2c_decode(const ltx2c_patch *patch, const float *scale) {
    for (size_t row = 0; row < patch->rows; row++)
        ltx2c_decode_piece((const uint8_t *)patch->codes.data + (ptrdiff_t)row * patch->codes.stride,
                           patch->values.data + (ptrdiff_t)row * patch->values.stride, patch->columns, patch->wide,
                           patch->kind, scale);
}

static ltx2c_tally ltx2c_encode(const ltx2c_patch *patch, const float *multiplier) {
    ltx2c_tally tally = {0};
    for (size_t row = 0; row < patch->rows; row++)
        ltx2c_add_tally(&tally,
                        ltx2c_encode_piece(patch->values.data + (ptrdiff_t)row * patch->values.stride,
                                           (uint8_t *)patch->codes.data + (ptrdiff_t)row * patch->codes.stride,
                                           patch->columns, patch->wide, patch->kind, multiplier));
    return tally;
}

/* Makes every code 0; how many were not. */
static ltx2c_tally ltx2c_clear(const ltx2c_patch *patch) {
    ltx2c_tally tally = {0};
    for (size_t row = 0; row < patch->rows; row++) {
        uint8_t *codes = (uint8_t *)patch->codes.data + (ptrdiff_t)row * patch->codes.stride;
        for (size_t i = 0; i < patch->columns; i++) tally.changed += codes[i] != 0;
        memset(codes, 0, patch->columns);
    }
    return tally;
}

/* Encodes a granule whose largest magnitude has the bits `largest`. One that has no scale is left as it was. */
static ltx2c_tally ltx2c_encode_granule(const ltx2c_patch *granule, uint32_t largest) {
    const float multiplier = largest ? ltx2c_multiplier(largest) : 0.0f; /* of zeros, -0.0 too, the code is 0 */
    if (largest && multiplier == 0.0f) return (ltx2c_tally){.unencodable = granule->rows * granule->columns};
    return largest ? ltx2c_encode(granule, &multiplier) : ltx2c_clear(granule);
}

/* The scale of such a granule. One of zeros keeps the scale that it had. */
static inline float ltx2c_scale(uint32_t largest, float before) {
    const float multiplier = largest ? ltx2c_multiplier(largest) : 0.0f;
    return multiplier == 0.0f ? before : 1.0f / multiplier;
}

/* ---- Bands: what one thread does at a time ----------------------------------------------------------------------- */

/* A patch cut into bands of `rows` rows, and those into granules `columns` wide (what is left at the edges is smaller).
 * `scales` is row-major, `step` from band to band: 0 where one scale is for all. NULL where codes have no scale. */
typedef struct {
    float *scales;
    size_t step, rows, columns;
} ltx2c_grid;

LTX2C_INLINE ltx2c_patch ltx2c_granule(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band, size_t column) {
    const size_t row = band * grid->rows, rows = patch->rows - row, columns = patch->columns - column;
    ltx2c_patch part = *patch;
    part.values.data += (ptrdiff_t)row * patch->values.stride + (ptrdiff_t)(column * (patch->wide ? 4 : 2));
    part.codes.data += (ptrdiff_t)row * patch->codes.stride + (ptrdiff_t)column;
    part.rows = rows < grid->rows ? rows : grid->rows;
    part.columns = columns < grid->columns ? columns : grid->columns;
    return part;
}

static void ltx2c_decode_band(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    const float *scale = grid->scales ? grid->scales + band * grid->step : NULL;
    for (size_t column = 0; column < patch->columns; column += grid->columns) {
        const ltx2c_patch granule = ltx2c_granule(patch, grid, band, column);
        ltx2c_decode(&granule, scale ? scale++ : NULL);
    }
    ltx2c_leave_environment(saved);
}

/* Encodes a band, and sets the scales of its granules. */
static ltx2c_tally ltx2c_encode_band(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    float *scale = grid->scales + band * grid->step;
    ltx2c_tally tally = {0};
    for (size_t column = 0; column < patch->columns; column += grid->columns, scale++) {
        const ltx2c_patch granule = ltx2c_granule(patch, grid, band, column);
        const uint32_t largest = ltx2c_largest(&granule);
        ltx2c_add_tally(&tally, ltx2c_encode_granule(&granule, largest));
        *scale = ltx2c_scale(largest, *scale);
    }
    ltx2c_leave_environment(saved);
    return tally;
}

/* Where one scale is for all bands, or none: the largest magnitude first, of each band; then the codes, with that of
 * all bands. */
static uint32_t ltx2c_largest_of_band(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band) {
    const ltx2c_patch granule = ltx2c_granule(patch, grid, band, 0);
    return ltx2c_largest(&granule);
}

static ltx2c_tally ltx2c_encode_band_by(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band,
                                        uint32_t largest) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    const ltx2c_patch granule = ltx2c_granule(patch, grid, band, 0);
    const ltx2c_tally tally = grid->scales ? ltx2c_encode_granule(&granule, largest) : ltx2c_encode(&granule, NULL);
    ltx2c_leave_environment(saved);
    return tally;
}

#endif
