/* Full terms that are made where they are used, a strip at a time: they never are in memory, nor in a cache but the
 * first. */
#ifndef LTX2C_MADE_H
#define LTX2C_MADE_H

#include "core.h"

enum { LTX2C_MADE = 4096 }; /* columns at a time */

/* `count` columns of a row, from `column` on: `one` and `two` are rows of the factors. */
LTX2C_CLONES static void ltx2c_make_row(float *__restrict to, const float *__restrict one, const float *__restrict two,
                                        size_t two_columns, size_t column, size_t count) {
    size_t place = column % two_columns, end;
    for (one += column / two_columns; count; one++, count -= end, to += end, place = 0) {
        const float factor = *one;
        end = two_columns - place < count ? two_columns - place : count;
        for (size_t i = 0; i < end; i++) to[i] = factor * two[place + i];
    }
}

/* Rows of the product into rows of LTX2C_MADE values. */
static void ltx2c_make(float *to, const ltx2c_kronecker *k, size_t row, size_t rows, size_t column, size_t columns) {
    row += k->first;
    for (size_t end = row + rows; row < end; row++, to += LTX2C_MADE)
        ltx2c_make_row(to, k->one + row / k->two_rows * k->one_columns, k->two + row % k->two_rows * k->two_columns,
                       k->two_columns, column, columns);
}

#endif
