/* The codecs of stored weights on a sweep of shapes and values.
 *
 * Prints a checksum of all results: the same on every machine, because the inputs are too. ci/sanitize.sh runs it under
 * sanitizers, ci/neon.sh on aarch64. Every array is its own allocation of exactly its size, so that a read or write one
 * element too far is seen; in half of the cases it begins at an odd address. With an argument, that many cases.
 */
#include "core.h"

#include "codecs.h"
#include "nvfp4.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { CASES = 3000 };

static uint64_t state, checksum = 14695981039346656037u;
static size_t lead; /* bytes in front of every array */

static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static uint32_t below(uint32_t limit) { return draw() % limit; }

static char *allocate(size_t bytes) {
    char *memory = malloc(lead + bytes);
    if (!memory) exit(3);
    return memory + lead;
}

static void release(const void *array) { free((char *)array - lead); }

static void check(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) checksum = (checksum ^ ((const uint8_t *)data)[i]) * 1099511628211u;
}

static void check_tally(ltx2c_tally tally) {
    check(&tally.changed, sizeof tally.changed);
    check(&tally.nonfinite, sizeof tally.nonfinite);
    check(&tally.unencodable, sizeof tally.unencodable);
}

/* Values of a kind: as weights have them, any bits, zeros of both signs, tiny ones. */
static void fill(char *values, size_t count, int wide, uint32_t kind) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = draw() << 1 | below(2);
        if (kind == 0) bits = (bits & 0x807fffff) | (100 + below(40)) << 23;
        if (kind == 2) bits &= 0x80000000;
        if (kind == 3) bits &= 0x801fffff;
        const uint16_t half = (uint16_t)(bits >> 16);
        if (wide)
            memcpy(values + 4 * i, &bits, 4);
        else
            memcpy(values + 2 * i, &half, 2);
    }
}

static uint8_t *draw_codes(size_t count) {
    uint8_t *codes = (uint8_t *)allocate(count);
    for (size_t i = 0; i < count; i++) codes[i] = (uint8_t)draw();
    return codes;
}

static uint32_t largest_of(const char *values, size_t count, int wide) {
    const uint32_t largest = ltx2c_largest_piece(values, count, wide);
    check(&largest, sizeof largest);
    return largest;
}

/* Codes without a scale, with one, or with one for each granule; both ways. */
static void fp8(void) {
    const size_t rows = 1 + below(9), columns = 1 + below(1200), count = rows * columns;
    const int wide = (int)below(2), scaled = (int)below(3);
    const ltx2c_fp8 kind = scaled ? LTX2C_E4M3 : (ltx2c_fp8)below(2);
    const ltx2c_patch patch = {
        .values = {allocate(count * (wide ? 4 : 2)), (ptrdiff_t)columns * (wide ? 4 : 2)},
        .codes = {(char *)draw_codes(count), (ptrdiff_t)columns},
        .rows = rows, .columns = columns, .wide = wide, .kind = kind};
    ltx2c_grid grid = {.rows = 1 + below((uint32_t)rows), .columns = columns};
    if (scaled == 2) grid.columns = 1 + below((uint32_t)columns);
    const size_t bands = (rows + grid.rows - 1) / grid.rows, step = (columns + grid.columns - 1) / grid.columns;
    const size_t scales = scaled == 2 ? bands * step : 1;
    float *room = malloc(scales * sizeof(float)); /* floats are where floats may be */
    for (size_t i = 0; i < scales; i++) room[i] = ltx2c_float((110 + below(20)) << 23 | below(1 << 23));
    if (scaled) grid.scales = room;
    if (scaled == 2) grid.step = step;
    for (size_t band = 0; band < bands; band++) ltx2c_decode_band(&patch, &grid, band);
    check(patch.values.data, count * (wide ? 4 : 2));
    fill(patch.values.data, count, wide, below(4));
    const uint32_t largest = largest_of(patch.values.data, count, wide);
    for (size_t band = 0; band < bands; band++)
        check_tally(scaled == 2 ? ltx2c_encode_band(&patch, &grid, band)
                                : ltx2c_encode_band_by(&patch, &grid, band, largest));
    if (scaled == 1) room[0] = ltx2c_scale_of_all(largest, room[0]);
    check(patch.codes.data, count);
    check(room, scales * sizeof(float));
    free(room);
    release(patch.codes.data);
    release(patch.values.data);
}

static void nvfp4(void) {
    const size_t rows = 1 + below(140), blocks = 1 + below(70), columns = blocks * LTX2C_NVFP4_BLOCK;
    const int wide = (int)below(2), swizzled = (int)below(2), padded = swizzled || below(2);
    const size_t scale_rows = padded ? (rows + 127) / 128 * 128 : rows;
    ltx2c_nvfp4 weight = {
        .values = {allocate(rows * columns * (wide ? 4 : 2)), (ptrdiff_t)columns * (wide ? 4 : 2)},
        .codes = {(char *)draw_codes(rows * columns / 2), (ptrdiff_t)columns / 2},
        .rows = rows, .columns = columns, .wide = wide, .swizzled = swizzled,
        .scale_columns = padded ? (blocks + 3) / 4 * 4 : blocks,
        .scale = ltx2c_float((100 + below(20)) << 23)};
    weight.scales = draw_codes(scale_rows * weight.scale_columns);
    for (size_t row = 0; row < rows; row++) ltx2c_nvfp4_decode_row(&weight, row);
    check(weight.values.data, rows * columns * (wide ? 4 : 2));
    const uint32_t kind = below(4);
    fill(weight.values.data, rows * columns, wide, kind);
    const uint32_t largest = largest_of(weight.values.data, rows * columns, wide);
    if (largest && ltx2c_nvfp4_encodable(largest)) {
        weight.scale = ltx2c_nvfp4_scale(largest);
        for (size_t row = 0; row < rows; row++) check_tally(ltx2c_nvfp4_encode_row(&weight, row));
        check(&weight.scale, sizeof weight.scale);
    }
    check(weight.codes.data, rows * columns / 2);
    check(weight.scales, scale_rows * weight.scale_columns);
    release(weight.scales);
    release(weight.codes.data);
    release(weight.values.data);
}

static void cast(void) {
    static const ltx2c_dtype dtypes[] = {LTX2C_BF16, LTX2C_F32, LTX2C_F16};
    const ltx2c_dtype source = dtypes[below(3)], target = dtypes[below(3)];
    const size_t count = 1 + below(3000);
    char *from = allocate(count * ltx2c_itemsize(source)), *to = allocate(count * ltx2c_itemsize(target));
    fill(from, count, source == LTX2C_F32, below(4));
    const uint64_t overflowed = ltx2c_cast_row(from, to, count, source, target);
    check(&overflowed, sizeof overflowed);
    check(to, count * ltx2c_itemsize(target));
    release(to);
    release(from);
}

int main(int count, char **arguments) {
    const int cases = count > 1 ? atoi(arguments[1]) : CASES;
    for (int number = 0; number < cases; number++) {
        state = (uint64_t)number * 0x9e3779b97f4a7c15u;
        lead = (size_t)number % 2;
        fp8();
        if (number % 8 == 0) nvfp4();
        cast();
    }
    printf("%d cases of the codecs, checksum %016" PRIx64 "\n", cases, checksum);
    return 0;
}
