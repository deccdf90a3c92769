/* NVFP4: two e2m1 codes to a byte, the first in the high half; an e4m3 scale for each 16 of a row, and one f32 scale for
 * all. Rows of scales come in either of two orders, padded or not; padding is neither read nor written.
 */
#ifndef LTX2C_NVFP4_H
#define LTX2C_NVFP4_H

#include "codecs.h"

enum { LTX2C_NVFP4_BLOCK = 16 };

typedef struct {
    ltx2c_rows values, codes;
    size_t rows, columns; /* of values; columns are whole blocks */
    size_t first_row;     /* of the weight: where in the scales the rows begin */
    int wide;
    uint8_t *scales;
    size_t scale_columns; /* of the scales' array, padding included */
    int swizzled;         /* in cuBLAS's tiles of 128 rows x 4 columns, else row-major */
    float scale;          /* of all */
} ltx2c_nvfp4;

LTX2C_INLINE size_t ltx2c_nvfp4_place(const ltx2c_nvfp4 *weight, size_t row, size_t column) {
    row += weight->first_row;
    if (!weight->swizzled) return row * weight->scale_columns + column;
    const size_t tile = row / 128 * (weight->scale_columns / 4) + column / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
}

/* What both codes of a byte stand for: of all 256, which an L1 cache holds beside everything else. */
#define LTX2C_E2M1(sign, high) {high, sign 0.0f}, {high, sign 0.5f}, {high, sign 1.0f}, {high, sign 1.5f}, \
    {high, sign 2.0f}, {high, sign 3.0f}, {high, sign 4.0f}, {high, sign 6.0f}
#define LTX2C_E2M1_PAIRS(high) LTX2C_E2M1(, high), LTX2C_E2M1(-, high)
static const float ltx2c_e2m1_pairs[256][2] = {
    LTX2C_E2M1_PAIRS(0.0f),  LTX2C_E2M1_PAIRS(0.5f),  LTX2C_E2M1_PAIRS(1.0f),  LTX2C_E2M1_PAIRS(1.5f),
    LTX2C_E2M1_PAIRS(2.0f),  LTX2C_E2M1_PAIRS(3.0f),  LTX2C_E2M1_PAIRS(4.0f),  LTX2C_E2M1_PAIRS(6.0f),
    LTX2C_E2M1_PAIRS(-0.0f), LTX2C_E2M1_PAIRS(-0.5f), LTX2C_E2M1_PAIRS(-1.0f), LTX2C_E2M1_PAIRS(-1.5f),
    LTX2C_E2M1_PAIRS(-2.0f), LTX2C_E2M1_PAIRS(-3.0f), LTX2C_E2M1_PAIRS(-4.0f), LTX2C_E2M1_PAIRS(-6.0f),
};

/* To nearest, ties to the even code, saturating at 6; `value` is no NaN. As `ltx2c_to_fp8` does it. */
LTX2C_INLINE uint32_t ltx2c_to_e2m1(float value) {
    const uint32_t given = ltx2c_bits(value);
    const int32_t magnitude = (int32_t)(given & 0x7fffffff), six = 0x40c00000, one = 0x3f800000;
    const int32_t bits = magnitude < six ? magnitude : six;
    const float anchor = 0x1p22f; /* its ulp is that of the codes below 1 */
    const uint32_t denormal = ltx2c_bits(ltx2c_float((uint32_t)bits) + anchor) - ltx2c_bits(anchor);
    const uint32_t normal = ((uint32_t)bits + (0x1fffff - (126u << 23)) + (((uint32_t)bits >> 22) & 1)) >> 22;
    return (bits < one ? denormal : normal) | (given >> 28 & 8);
}

/* Blocks done together: their codes and scales lie on the stack, one to a value, so that loops are long and simple. */
enum { LTX2C_NVFP4_STRETCH = 64, LTX2C_NVFP4_VALUES = LTX2C_NVFP4_STRETCH * LTX2C_NVFP4_BLOCK };

LTX2C_INLINE void ltx2c_nvfp4_spread(float *each, const float *of_blocks, size_t blocks) {
    for (size_t block = 0; block < blocks; block++)
        for (int i = 0; i < LTX2C_NVFP4_BLOCK; i++) each[block * LTX2C_NVFP4_BLOCK + i] = of_blocks[block];
}

LTX2C_INLINE void ltx2c_nvfp4_decode_loop(const uint8_t *codes, char *values, const float *scales, size_t blocks,
                                          int wide) {
    float unpacked[LTX2C_NVFP4_VALUES], scale[LTX2C_NVFP4_VALUES];
    ltx2c_nvfp4_spread(scale, scales, blocks);
    for (size_t i = 0; i < blocks * 8; i++) memcpy(unpacked + 2 * i, ltx2c_e2m1_pairs[codes[i]], 2 * sizeof(float));
    for (size_t i = 0; i < blocks * LTX2C_NVFP4_BLOCK; i++) {
        const float value = unpacked[i] * scale[i];
        if (wide) {
            memcpy(values + i * sizeof value, &value, sizeof value);
        } else {
            const uint16_t half = ltx2c_to_bf16(value);
            memcpy(values + i * sizeof half, &half, sizeof half);
        }
    }
}

/* At most LTX2C_NVFP4_STRETCH blocks. */
LTX2C_CLONES static void ltx2c_nvfp4_decode_piece(const uint8_t *codes, char *values, const float *scales,
                                                  size_t blocks, int wide) {
    if (wide)
        ltx2c_nvfp4_decode_loop(codes, values, scales, blocks, 1);
    else
        ltx2c_nvfp4_decode_loop(codes, values, scales, blocks, 0);
}

/* Scales of the blocks of some values, as e4m3 codes, where `scale` is that of all. */
LTX2C_INLINE void ltx2c_nvfp4_scales_loop(const char *values, uint8_t *scales, float scale, size_t blocks, int wide) {
    for (size_t block = 0; block < blocks; block++, values += 16 * (wide ? 4 : 2)) {
        uint32_t largest = 0;
        for (int i = 0; i < 16; i++) {
            const uint32_t magnitude = ltx2c_bits(ltx2c_value(values, i, wide)) & 0x7fffffff;
            largest = magnitude > largest ? magnitude : largest;
        }
        scales[block] = ltx2c_to_fp8(ltx2c_float(largest) / 6.0f / scale, LTX2C_E4M3);
    }
}

LTX2C_CLONES static void ltx2c_nvfp4_scales_piece(const char *values, uint8_t *scales, float scale, size_t blocks,
                                                  int wide) {
    if (wide)
        ltx2c_nvfp4_scales_loop(values, scales, scale, blocks, 1);
    else
        ltx2c_nvfp4_scales_loop(values, scales, scale, blocks, 0);
}

LTX2C_INLINE uint64_t ltx2c_nvfp4_encode_loop(const char *values, uint8_t *codes, const float *multipliers,
                                              size_t blocks, int wide) {
    uint8_t found[LTX2C_NVFP4_VALUES], packed[LTX2C_NVFP4_VALUES / 2];
    float multiplier[LTX2C_NVFP4_VALUES];
    uint16_t changed = 0;
    ltx2c_nvfp4_spread(multiplier, multipliers, blocks);
    for (size_t i = 0; i < blocks * LTX2C_NVFP4_BLOCK; i++)
        found[i] = (uint8_t)ltx2c_to_e2m1(ltx2c_value(values, i, wide) * multiplier[i]);
    for (size_t i = 0; i < blocks * 8; i++) packed[i] = (uint8_t)(found[2 * i] << 4 | found[2 * i + 1]);
    for (size_t block = 0; block < blocks; block++)
        if (multipliers[block] == 0.0f) memset(packed + 8 * block, 0, 8); /* of -0.0 too, where there is no scale */
    for (size_t i = 0; i < blocks * 8; i++) {
        const uint8_t difference = packed[i] ^ codes[i];
        changed = (uint16_t)(changed + ((difference & 0xf0) != 0) + ((difference & 0x0f) != 0));
    }
    memcpy(codes, packed, blocks * 8);
    return changed;
}

/* Codes of values times the multiplier of their block, of at most LTX2C_NVFP4_STRETCH blocks; how many are others than
 * before. */
LTX2C_CLONES static uint64_t ltx2c_nvfp4_encode_piece(const char *values, uint8_t *codes, const float *multipliers,
                                                      size_t blocks, int wide) {
    return wide ? ltx2c_nvfp4_encode_loop(values, codes, multipliers, blocks, 1)
                : ltx2c_nvfp4_encode_loop(values, codes, multipliers, blocks, 0);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static void ltx2c_nvfp4_decode_row(const ltx2c_nvfp4 *weight, size_t row) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    const uint8_t *codes = (const uint8_t *)weight->codes.data + (ptrdiff_t)row * weight->codes.stride;
    char *values = weight->values.data + (ptrdiff_t)row * weight->values.stride;
    const size_t blocks = weight->columns / LTX2C_NVFP4_BLOCK;
    for (size_t first = 0; first < blocks; first += LTX2C_NVFP4_STRETCH) {
        const size_t count = blocks - first < LTX2C_NVFP4_STRETCH ? blocks - first : LTX2C_NVFP4_STRETCH;
        float scales[LTX2C_NVFP4_STRETCH];
        for (size_t i = 0; i < count; i++)
            scales[i] = ltx2c_float(ltx2c_fp8_bits(weight->scales[ltx2c_nvfp4_place(weight, row, first + i)],
                                                   LTX2C_E4M3)) * weight->scale;
        ltx2c_nvfp4_decode_piece(codes + first * 8, values + first * 16 * (weight->wide ? 4 : 2), scales, count,
                                 weight->wide);
    }
    ltx2c_leave_environment(saved);
}

/* Whether values of that largest magnitude have a scale: NVFP4 has no infinity and no NaN. */
static inline int ltx2c_nvfp4_encodable(uint32_t largest) {
    return largest < 0x7f800000 && ltx2c_bits(1.0f / ltx2c_float(largest)) != 0x7f800000;
}

/* The scale of all, where the largest magnitude has the bits `largest`. */
static inline float ltx2c_nvfp4_scale(uint32_t largest) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    volatile float given = ltx2c_float(largest); /* volatile: the compiler may not move the product out of here */
    volatile float scale = given * (1.0f / 2688.0f);
    ltx2c_leave_environment(saved);
    return scale;
}

/* Encodes a row by `weight->scale`, which is not 0, and sets its scales. Where a block's scale times that of all is so
 * small that its inverse is infinite, the block has no scale. */
static ltx2c_tally ltx2c_nvfp4_encode_row(const ltx2c_nvfp4 *weight, size_t row) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    uint8_t *codes = (uint8_t *)weight->codes.data + (ptrdiff_t)row * weight->codes.stride;
    const char *values = weight->values.data + (ptrdiff_t)row * weight->values.stride;
    const size_t blocks = weight->columns / LTX2C_NVFP4_BLOCK;
    ltx2c_tally tally = {0};
    for (size_t first = 0; first < blocks; first += LTX2C_NVFP4_STRETCH) {
        const size_t count = blocks - first < LTX2C_NVFP4_STRETCH ? blocks - first : LTX2C_NVFP4_STRETCH;
        const char *from = values + first * 16 * (weight->wide ? 4 : 2);
        uint8_t scales[LTX2C_NVFP4_STRETCH];
        float multipliers[LTX2C_NVFP4_STRETCH];
        ltx2c_nvfp4_scales_piece(from, scales, weight->scale, count, weight->wide);
        for (size_t i = 0; i < count; i++) {
            const float both = ltx2c_float(ltx2c_fp8_bits(scales[i], LTX2C_E4M3)) * weight->scale;
            multipliers[i] = both == 0.0f ? 0.0f : 1.0f / both;
            if (ltx2c_bits(multipliers[i]) == 0x7f800000) tally.unencodable += LTX2C_NVFP4_BLOCK;
            weight->scales[ltx2c_nvfp4_place(weight, row, first + i)] = scales[i];
        }
        tally.changed += ltx2c_nvfp4_encode_piece(from, codes + first * 8, multipliers, count, weight->wide);
    }
    ltx2c_leave_environment(saved);
    return tally;
}

#endif
