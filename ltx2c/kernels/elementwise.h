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

LTX2C_CLONES static void ltx2c_multiply_into(float *to, const float *values, float factor, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = factor * values[i];
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

/* A row of kron(one, two): f32(one[j] * two[r]) at j * two_count + r. */
static void ltx2c_kron_row(float *to, const float *one, size_t one_count, const float *two, size_t two_count) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    for (size_t j = 0; j < one_count; j++) ltx2c_multiply_into(to + j * two_count, two, one[j], two_count);
    ltx2c_leave_environment(saved);
}

/* ---- Storing ----------------------------------------------------------------------------------------------------- */

LTX2C_INLINE uint64_t ltx2c_store_loop(const float *values, char *to, size_t count, int through_bf16,
                                       ltx2c_dtype dtype) {
    uint32_t lost = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t before = ltx2c_bits(ltx2c_load(to, i, dtype)) & 0x7f800000;
        const float value = through_bf16 ? ltx2c_from_bf16(ltx2c_to_bf16(values[i])) : values[i];
        uint32_t after;
        if (dtype == LTX2C_F32) {
            const uint32_t bits = ltx2c_bits(value);
            after = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : bits;
            memcpy(to + i * sizeof after, &after, sizeof after);
        } else {
            const uint16_t half = dtype == LTX2C_BF16 ? ltx2c_to_bf16(value) : ltx2c_to_f16(value);
            memcpy(to + i * sizeof half, &half, sizeof half);
            after = (half & (dtype == LTX2C_BF16 ? 0x7f80 : 0x7c00)) == (dtype == LTX2C_BF16 ? 0x7f80 : 0x7c00)
                        ? 0x7f800000
                        : 0;
        }
        lost += ((after & 0x7f800000) == 0x7f800000) & (before != 0x7f800000);
    }
    return lost;
}

LTX2C_CLONES static uint64_t ltx2c_store_piece(const float *values, char *to, size_t count, int through_bf16,
                                               ltx2c_dtype dtype) {
    if (dtype == LTX2C_BF16) return ltx2c_store_loop(values, to, count, 0, LTX2C_BF16);
    if (dtype == LTX2C_F32)
        return through_bf16 ? ltx2c_store_loop(values, to, count, 1, LTX2C_F32)
                            : ltx2c_store_loop(values, to, count, 0, LTX2C_F32);
    return through_bf16 ? ltx2c_store_loop(values, to, count, 1, LTX2C_F16)
                        : ltx2c_store_loop(values, to, count, 0, LTX2C_F16);
}

/* Rounds values to nearest, first to bf16 if asked to, and stores them, any NaN as the canonical one. How many are
 * infinite or NaN where what stood there was finite. */
static uint64_t ltx2c_store_row(const float *values, char *to, size_t count, int through_bf16, ltx2c_dtype dtype) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    const uint64_t lost = ltx2c_store_piece(values, to, count, through_bf16, dtype);
    ltx2c_leave_environment(saved);
    return lost;
}

static void ltx2c_multiply_part(float *first, const float *second, size_t count) {
    const ltx2c_environment saved = ltx2c_enter_environment();
    ltx2c_multiply(first, second, count);
    ltx2c_leave_environment(saved);
}

#endif
