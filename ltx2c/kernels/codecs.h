/* FP8 codes to values and back: what stands between a stored layout and the kernels.
 *
 * Everything here works on a piece of a row, in plain C that compilers vectorise: branch-free, in 32-bit lanes. Each
 * such loop is compiled once per width of vectors, and the loader picks (LTX2C_CLONES); the arithmetic is in integers or
 * in single IEEE operations, so all of them give the same bytes. Arrays may lie at any address.
 */
#ifndef LTX2C_CODECS_H
#define LTX2C_CODECS_H

#include "core.h"
#include "environment.h"

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

/* To nearest, ties to even. e4m3 saturates at 448, infinities too; e5m2 overflows to infinity. `value` is no NaN. */
LTX2C_INLINE uint32_t ltx2c_number_to_fp8(float value, ltx2c_fp8 kind) {
    const uint32_t given = ltx2c_bits(value);
    const int32_t magnitude = (int32_t)(given & 0x7fffffff); /* signed, as AVX2 compares */
    const int32_t most = kind == LTX2C_E4M3 ? 0x43e00000 : 0x47700000; /* 448, and 61440, which becomes infinity */
    const int32_t bits = magnitude < most ? magnitude : most;
    const int dropped = kind == LTX2C_E4M3 ? 20 : 21; /* bits of the mantissa */
    const uint32_t rebias = (kind == LTX2C_E4M3 ? 127u - 7 : 127u - 15) << 23;
    /* A number whose ulp is the unit of the codes below the smallest normal one: the addition does the rounding. */
    const float anchor = kind == LTX2C_E4M3 ? 0x1p14f : 0x1p7f;
    const uint32_t denormal = ltx2c_bits(ltx2c_float((uint32_t)bits) + anchor) - ltx2c_bits(anchor);
    const uint32_t half = (1u << (dropped - 1)) - 1 - rebias;
    const uint32_t normal = ((uint32_t)bits + half + (((uint32_t)bits >> dropped) & 1)) >> dropped;
    return (bits < (int32_t)(rebias + (1 << 23)) ? denormal : normal) | (given >> 24 & 0x80);
}

/* The same; any NaN becomes the canonical one. */
LTX2C_INLINE uint8_t ltx2c_to_fp8(float value, ltx2c_fp8 kind) {
    const uint32_t code = ltx2c_number_to_fp8(value, kind), nan = kind == LTX2C_E4M3 ? 0x7f : 0x7e;
    return (uint8_t)((int32_t)(ltx2c_bits(value) & 0x7fffffff) > 0x7f800000 ? nan : code);
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

enum { LTX2C_STRETCH = 512 }; /* values whose codes lie on the stack before they are compared with those before */

LTX2C_INLINE ltx2c_tally ltx2c_encode_loop(const void *values, uint8_t *codes, size_t count, int wide, ltx2c_fp8 kind,
                                           const float *multiplier) {
    const float factor = multiplier ? *multiplier : 1.0f;
    ltx2c_tally tally = {0};
    for (size_t first = 0; first < count; first += LTX2C_STRETCH) {
        const size_t some = count - first < LTX2C_STRETCH ? count - first : LTX2C_STRETCH;
        uint8_t found[LTX2C_STRETCH];
        uint16_t changed = 0, nonfinite = 0;
        for (size_t i = 0; i < some; i++) {
            const float value = ltx2c_value(values, first + i, wide);
            found[i] = multiplier ? (uint8_t)ltx2c_number_to_fp8(value * factor, kind) : ltx2c_to_fp8(value, kind);
        }
        for (size_t i = 0; i < some; i++) changed = (uint16_t)(changed + (found[i] != codes[first + i]));
        for (size_t i = 0; i < some && !multiplier; i++)
            nonfinite = (uint16_t)(nonfinite + ((!ltx2c_fp8_finite(found[i], kind)) &
                                                ltx2c_fp8_finite(codes[first + i], kind)));
        memcpy(codes + first, found, some);
        tally.changed += changed;
        tally.nonfinite += nonfinite;
    }
    return tally;
}

/* codes = values, times `*multiplier` unless it is NULL; saturating as `ltx2c_to_fp8` does. What has a multiplier is
 * finite. */
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

/* ---- From one dtype of values to another ------------------------------------------------------------------------- */

LTX2C_INLINE uint64_t ltx2c_cast_loop(const char *from, char *to, size_t count, ltx2c_dtype source,
                                      ltx2c_dtype target) {
    uint32_t overflowed = 0;
    for (size_t i = 0; i < count; i++) {
        const float value = ltx2c_load(from, i, source);
        const uint32_t magnitude = ltx2c_bits(value) & 0x7fffffff;
        if (target == LTX2C_F32) {
            const uint32_t bits = magnitude > 0x7f800000 ? 0x7fc00000 : ltx2c_bits(value);
            memcpy(to + i * sizeof bits, &bits, sizeof bits);
        } else {
            const uint16_t half = target == LTX2C_BF16 ? ltx2c_to_bf16(value) : ltx2c_to_f16(value);
            const uint16_t infinity = target == LTX2C_BF16 ? 0x7f80 : 0x7c00;
            overflowed += ((half & 0x7fff) == infinity) & (magnitude < 0x7f800000);
            memcpy(to + i * sizeof half, &half, sizeof half);
        }
    }
    return overflowed;
}

/* To nearest, ties to even; any NaN becomes the canonical one. How many finite values became infinite. */
LTX2C_CLONES static uint64_t ltx2c_cast_piece(const char *from, char *to, size_t count, ltx2c_dtype source,
                                              ltx2c_dtype target) {
    if (source == LTX2C_BF16)
        return target == LTX2C_BF16  ? ltx2c_cast_loop(from, to, count, LTX2C_BF16, LTX2C_BF16)
               : target == LTX2C_F32 ? ltx2c_cast_loop(from, to, count, LTX2C_BF16, LTX2C_F32)
                                     : ltx2c_cast_loop(from, to, count, LTX2C_BF16, LTX2C_F16);
    if (source == LTX2C_F32)
        return target == LTX2C_BF16  ? ltx2c_cast_loop(from, to, count, LTX2C_F32, LTX2C_BF16)
               : target == LTX2C_F32 ? ltx2c_cast_loop(from, to, count, LTX2C_F32, LTX2C_F32)
                                     : ltx2c_cast_loop(from, to, count, LTX2C_F32, LTX2C_F16);
    return target == LTX2C_BF16  ? ltx2c_cast_loop(from, to, count, LTX2C_F16, LTX2C_BF16)
           : target == LTX2C_F32 ? ltx2c_cast_loop(from, to, count, LTX2C_F16, LTX2C_F32)
                                 : ltx2c_cast_loop(from, to, count, LTX2C_F16, LTX2C_F16);
}

static inline uint64_t ltx2c_cast_row(const char *from, char *to, size_t count, ltx2c_dtype source,
                                      ltx2c_dtype target) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    const uint64_t overflowed = ltx2c_cast_piece(from, to, count, source, target);
    ltx2c_leave_environment(saved);
    return overflowed;
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

LTX2C_INLINE char *ltx2c_values_at(const ltx2c_patch *patch, size_t row, size_t column) {
    return patch->values.data + (ptrdiff_t)row * patch->values.stride + column * (patch->wide ? 4 : 2);
}

LTX2C_INLINE uint8_t *ltx2c_codes_at(const ltx2c_patch *patch, size_t row, size_t column) {
    return (uint8_t *)patch->codes.data + (ptrdiff_t)row * patch->codes.stride + column;
}

/* Makes codes 0; how many were not. */
static inline ltx2c_tally ltx2c_clear(uint8_t *codes, size_t count) {
    ltx2c_tally tally = {0};
    for (size_t i = 0; i < count; i++) tally.changed += codes[i] != 0;
    memset(codes, 0, count);
    return tally;
}

/* Encodes `count` values of one row and of one granule, whose largest magnitude has the bits `largest`. Codes of a
 * granule that has no scale are left as they were. */
static inline ltx2c_tally ltx2c_encode_part(const ltx2c_patch *patch, size_t row, size_t column, size_t count,
                                            uint32_t largest) {
    uint8_t *codes = ltx2c_codes_at(patch, row, column);
    if (!largest) return ltx2c_clear(codes, count); /* of -0.0 too the code is 0 */
    const float multiplier = ltx2c_multiplier(largest);
    if (multiplier == 0.0f) return (ltx2c_tally){.unencodable = count};
    return ltx2c_encode_piece(ltx2c_values_at(patch, row, column), codes, count, patch->wide, patch->kind, &multiplier);
}

/* The scale of such a granule. One of zeros keeps the scale that it had. */
static inline float ltx2c_scale(uint32_t largest, float before) {
    const float multiplier = largest ? ltx2c_multiplier(largest) : 0.0f;
    return multiplier == 0.0f ? before : 1.0f / multiplier;
}

/* The same outside of a band, in any environment. Volatile: the compiler may not move the arithmetic out of ours. */
static inline float ltx2c_scale_of_all(uint32_t largest, float before) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    volatile uint32_t given = largest;
    volatile float scale = ltx2c_scale(given, before);
    ltx2c_leave_environment(saved);
    return scale;
}

/* ---- Bands: what one thread does at a time ----------------------------------------------------------------------- */

/* A patch cut into bands of `rows` rows, and those into granules `columns` wide (what is left at the edges is smaller).
 * `scales` is row-major, `step` from band to band: 0 where one scale is for all. NULL where codes have no scale. */
typedef struct {
    float *scales;
    size_t step, rows, columns;
} ltx2c_grid;

enum { LTX2C_GRANULES = 64 }; /* of a band done together, so that its rows are read in long stretches */

LTX2C_INLINE size_t ltx2c_min_of(size_t a, size_t b) { return a < b ? a : b; }

static inline void ltx2c_decode_band(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    const size_t end = ltx2c_min_of((band + 1) * grid->rows, patch->rows);
    for (size_t row = band * grid->rows; row < end; row++) {
        const float *scale = grid->scales ? grid->scales + band * grid->step : NULL;
        for (size_t column = 0; column < patch->columns; column += grid->columns)
            ltx2c_decode_piece(ltx2c_codes_at(patch, row, column), ltx2c_values_at(patch, row, column),
                               ltx2c_min_of(grid->columns, patch->columns - column), patch->wide, patch->kind,
                               scale ? scale++ : NULL);
    }
    ltx2c_leave_environment(saved);
}

/* Encodes some granules of a band, from `first` on to column `last`, and sets their scales. */
static inline ltx2c_tally ltx2c_encode_granules(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band,
                                                size_t first, size_t last) {
    const size_t begin = band * grid->rows, end = ltx2c_min_of(begin + grid->rows, patch->rows);
    uint32_t largest[LTX2C_GRANULES] = {0};
    ltx2c_tally tally = {0};
    for (size_t row = begin; row < end; row++)
        for (size_t column = first, g = 0; column < last; column += grid->columns, g++) {
            const uint32_t here = ltx2c_largest_piece(ltx2c_values_at(patch, row, column),
                                                      ltx2c_min_of(grid->columns, last - column), patch->wide);
            largest[g] = here > largest[g] ? here : largest[g];
        }
    for (size_t row = begin; row < end; row++)
        for (size_t column = first, g = 0; column < last; column += grid->columns, g++)
            ltx2c_add_tally(&tally, ltx2c_encode_part(patch, row, column, ltx2c_min_of(grid->columns, last - column),
                                                      largest[g]));
    float *scale = grid->scales + band * grid->step + first / grid->columns;
    for (size_t column = first, g = 0; column < last; column += grid->columns, g++)
        scale[g] = ltx2c_scale(largest[g], scale[g]);
    return tally;
}

static inline ltx2c_tally ltx2c_encode_band(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    const size_t stretch = LTX2C_GRANULES * grid->columns;
    ltx2c_tally tally = {0};
    for (size_t first = 0; first < patch->columns; first += stretch)
        ltx2c_add_tally(&tally, ltx2c_encode_granules(patch, grid, band, first,
                                                      ltx2c_min_of(first + stretch, patch->columns)));
    ltx2c_leave_environment(saved);
    return tally;
}

/* Where one scale is for all bands, or none; `largest` has the bits of the largest magnitude of all. */
static inline ltx2c_tally ltx2c_encode_band_by(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band,
                                               uint32_t largest) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    const size_t end = ltx2c_min_of((band + 1) * grid->rows, patch->rows);
    ltx2c_tally tally = {0};
    for (size_t row = band * grid->rows; row < end; row++)
        ltx2c_add_tally(&tally, grid->scales ? ltx2c_encode_part(patch, row, 0, patch->columns, largest)
                                             : ltx2c_encode_piece(ltx2c_values_at(patch, row, 0),
                                                                  ltx2c_codes_at(patch, row, 0), patch->columns,
                                                                  patch->wide, patch->kind, NULL));
    ltx2c_leave_environment(saved);
    return tally;
}

#endif
