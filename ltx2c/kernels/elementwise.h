/* Arithmetic on the values of weights and deltas, element by element or along rows and columns, in plain C that
 * compilers vectorise (codecs.h says how). ../dora.py states the order of every sum.
 */
#ifndef LTX2C_ELEMENTWISE_H
#define LTX2C_ELEMENTWISE_H

#include <math.h>

#include "codecs.h"

enum { LTX2C_LANES = 64 };

/* f32(first * second) over `count` values, into `first`. */
LTX2C_CLONES static void ltx2c_multiply(float *first, const float *second, size_t count) {
    for (size_t i = 0; i < count; i++) first[i] *= second[i];
}

LTX2C_CLONES static void ltx2c_multiply_by(float *values, float factor, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] *= factor;
}

/* sums[i] += values[i]^2, the square exact in f64. */
LTX2C_CLONES static void ltx2c_add_squares(double *sums, const float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const double value = values[i];
        sums[i] += value * value;
    }
}

/* The sum of `count` values in order, which begins with the first. */
static inline double ltx2c_sum(const double *values, size_t count) {
    double sum = values[0];
    for (size_t i = 1; i < count; i++) sum += values[i];
    return sum;
}

/* What values of this sum of squares are multiplied by to have length `magnitude`; in a step as LyCORIS has it. */
static inline float ltx2c_rescaling(double squares, float magnitude, const float *step) {
    const float length = (float)sqrt(squares);
    if (!step) return magnitude / length;
    const float factor = magnitude / (length + 0x1p-23f) - 1.0f;
    return *step * factor + 1.0f;
}

/* Gives a row its length. */
static void ltx2c_rescale_row(float *row, size_t columns, float magnitude, const float *step) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    double lanes[LTX2C_LANES] = {0};
    for (size_t column = 0; column < columns; column += LTX2C_LANES)
        ltx2c_add_squares(lanes, row + column, columns - column < LTX2C_LANES ? columns - column : LTX2C_LANES);
    ltx2c_multiply_by(row, ltx2c_rescaling(ltx2c_sum(lanes, LTX2C_LANES), magnitude, step), columns);
    ltx2c_leave_environment(saved);
}

/* A band of columns, `inputs` of `places` each, over all rows; `room` is for a sum and a factor per column. */
static void ltx2c_rescale_columns(float *values, size_t rows, size_t stride, size_t inputs, size_t places,
                                  const float *magnitudes, const float *step, double *room) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    const size_t columns = inputs * places;
    float *factors = (float *)(room + columns);
    memset(room, 0, columns * sizeof *room);
    for (size_t row = 0; row < rows; row++) ltx2c_add_squares(room, values + row * stride, columns);
    for (size_t input = 0; input < inputs; input++) {
        const float factor = ltx2c_rescaling(ltx2c_sum(room + input * places, places), magnitudes[input], step);
        for (size_t place = 0; place < places; place++) factors[input * places + place] = factor;
    }
    for (size_t row = 0; row < rows; row++) ltx2c_multiply(values + row * stride, factors, columns);
    ltx2c_leave_environment(saved);
}

/* ---- Storing ----------------------------------------------------------------------------------------------------- */

enum { LTX2C_PIECE = 512 };

/* Values of one dtype, aligned, which is what compilers vectorise. */
typedef union {
    uint32_t f32[LTX2C_PIECE];
    uint16_t half[LTX2C_PIECE];
} ltx2c_piece;

/* Rounds values into a piece; not 0 where some result is infinite or NaN. */
LTX2C_INLINE uint32_t ltx2c_round_loop(const float *values, ltx2c_piece *piece, size_t count, int through_bf16,
                                       ltx2c_dtype dtype) {
    const uint32_t top = dtype == LTX2C_F32 ? 0x7f800000 : dtype == LTX2C_BF16 ? 0x7f80 : 0x7c00;
    uint32_t special = 0;
    for (size_t i = 0; i < count; i++) {
        const float value = through_bf16 ? ltx2c_from_bf16(ltx2c_to_bf16(values[i])) : values[i];
        uint32_t bits = ltx2c_bits(value);
        if (dtype == LTX2C_F32)
            piece->f32[i] = bits = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : bits;
        else
            piece->half[i] = (uint16_t)(bits = dtype == LTX2C_BF16 ? ltx2c_to_bf16(value) : ltx2c_to_f16(value));
        special |= (bits & top) == top;
    }
    return special;
}

LTX2C_CLONES static uint32_t ltx2c_round_piece(const float *values, ltx2c_piece *piece, size_t count, int through_bf16,
                                               ltx2c_dtype dtype) {
    if (dtype == LTX2C_BF16) return ltx2c_round_loop(values, piece, count, 0, LTX2C_BF16);
    if (dtype == LTX2C_F32)
        return through_bf16 ? ltx2c_round_loop(values, piece, count, 1, LTX2C_F32)
                            : ltx2c_round_loop(values, piece, count, 0, LTX2C_F32);
    return through_bf16 ? ltx2c_round_loop(values, piece, count, 1, LTX2C_F16)
                        : ltx2c_round_loop(values, piece, count, 0, LTX2C_F16);
}

/* How many values are infinite or NaN that were finite. */
LTX2C_APART uint64_t ltx2c_count_lost(const char *before, const char *after, size_t count, ltx2c_dtype dtype) {
    uint64_t lost = 0;
    for (size_t i = 0; i < count; i++)
        lost += (ltx2c_bits(ltx2c_load(after, i, dtype)) & 0x7f800000) == 0x7f800000 &&
                (ltx2c_bits(ltx2c_load(before, i, dtype)) & 0x7f800000) != 0x7f800000;
    return lost;
}

/* Rounds values to nearest, first to bf16 if asked to, and stores them, any NaN as the canonical one. How many are
 * infinite or NaN where what stood there was finite. */
static uint64_t ltx2c_store_row(const float *values, char *to, size_t count, int through_bf16, ltx2c_dtype dtype) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    ltx2c_piece piece;
    uint64_t lost = 0;
    for (size_t done, bytes; count; values += done, to += bytes, count -= done) {
        done = count < LTX2C_PIECE ? count : LTX2C_PIECE;
        bytes = done * ltx2c_itemsize(dtype);
        if (ltx2c_round_piece(values, &piece, done, through_bf16, dtype))
            lost += ltx2c_count_lost(to, (const char *)&piece, done, dtype);
        memcpy(to, &piece, bytes);
    }
    ltx2c_leave_environment(saved);
    return lost;
}

static void ltx2c_multiply_part(float *first, const float *second, size_t count) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    ltx2c_multiply(first, second, count);
    ltx2c_leave_environment(saved);
}

#endif
