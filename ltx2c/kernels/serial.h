/* serial: portable C, the twin every other kernel is tested against.
 *
 * Assumes nothing beyond IEEE single and double precision. Panels of 16 columns, one f32 per word; a tile is done one
 * row at a time. Multiply and add round separately (the build forbids contraction), so LTX needs no guard; the fused
 * step of F32 is made in double.
 */
#ifdef LTX2C_LISTING
&ltx2c_serial,
#elif !defined(LTX2C_SERIAL_H)
#define LTX2C_SERIAL_H

#include "core.h"

enum {
    ltx2c_serial_mr = 6,
    ltx2c_serial_lanes = 8,
    ltx2c_serial_vectors = 2,
    LTX2C_SERIAL_PANEL = 16
};

typedef struct {
    float lane[ltx2c_serial_lanes];
} ltx2c_serial_vector;
typedef struct {
    uint16_t half[2 * ltx2c_serial_lanes];
} ltx2c_serial_halves;
typedef ltx2c_serial_vector ltx2c_serial_tile[ltx2c_serial_mr][ltx2c_serial_vectors];

#define LTX2C_LANES(i) for (size_t i = 0; i < ltx2c_serial_lanes; i++)

static const char *ltx2c_serial_unsupported(void) { return NULL; }

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

static void ltx2c_serial_pack_a(uint32_t *to, size_t panel_words, const char *row, const char *next, size_t panels,
                                ltx2c_bounds *bounds) {
    (void)next;
    (void)bounds;
    for (size_t p = 0; p < panels; p++, to += panel_words, row += 2 * LTX2C_SERIAL_PANEL)
        LTX2C_LANES(i) {
            to[i] = (uint32_t)ltx2c_half(row, 2 * i) << 16;
            to[i + ltx2c_serial_lanes] = (uint32_t)ltx2c_half(row, 2 * i + 1) << 16;
        }
}

static void ltx2c_serial_pack_b(uint32_t *to, const char *row, size_t count, const float *strength,
                                ltx2c_bounds *bounds) {
    (void)bounds;
    for (size_t k = 0; k < count; k++) {
        const uint16_t half = ltx2c_half(row, k);
        to[k] = (uint32_t)(strength ? ltx2c_to_bf16(ltx2c_from_bf16(half) * *strength) : half) << 16;
    }
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

LTX2C_INLINE void ltx2c_serial_product(float *sum, const int fused, const uint32_t *a, const uint32_t *b,
                                       size_t depth) {
    for (size_t c = 0; c < LTX2C_SERIAL_PANEL; c++) sum[c] = 0.0f;
    for (size_t k = 0; k < depth; k++)
        for (size_t c = 0; c < LTX2C_SERIAL_PANEL; c++) {
            const float row = ltx2c_float(b[k]), column = ltx2c_float(a[k * LTX2C_SERIAL_PANEL + c]);
            sum[c] = fused ? ltx2c_fma(row, column, sum[c]) : sum[c] + row * column;
        }
}

static void ltx2c_serial_term(int rows, int f32, const ltx2c_factors *f, size_t p, ltx2c_serial_tile sum) {
    const uint32_t *a = f->a + p * f->depth * LTX2C_SERIAL_PANEL, *b = f->b;
    for (int r = 0; r < rows; r++, b += f->b_stride) {
        float columns[LTX2C_SERIAL_PANEL];
        if (f32)
            ltx2c_serial_product(columns, 1, a, b, f->depth);
        else
            ltx2c_serial_product(columns, 0, a, b, f->depth);
        memcpy(sum[r], columns, sizeof columns);
    }
}

/* ---- Vectors, for tile.h ----------------------------------------------------------------------------------------- */

LTX2C_INLINE ltx2c_serial_vector ltx2c_serial_load(const char *from) {
    ltx2c_serial_vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

LTX2C_INLINE void ltx2c_serial_store(char *to, ltx2c_serial_vector v) { memcpy(to, &v, sizeof v); }
LTX2C_INLINE ltx2c_serial_vector ltx2c_serial_kept(const float *from) { return ltx2c_serial_load((const char *)from); }
LTX2C_INLINE void ltx2c_serial_keep(float *to, ltx2c_serial_vector v) { ltx2c_serial_store((char *)to, v); }

LTX2C_INLINE ltx2c_serial_vector ltx2c_serial_splat(float value) {
    ltx2c_serial_vector v;
    LTX2C_LANES(i) v.lane[i] = value;
    return v;
}

LTX2C_INLINE ltx2c_serial_vector ltx2c_serial_add(ltx2c_serial_vector a, ltx2c_serial_vector b) {
    LTX2C_LANES(i) a.lane[i] += b.lane[i];
    return a;
}

LTX2C_INLINE ltx2c_serial_vector ltx2c_serial_mul(ltx2c_serial_vector a, ltx2c_serial_vector b) {
    LTX2C_LANES(i) a.lane[i] *= b.lane[i];
    return a;
}

LTX2C_INLINE ltx2c_serial_vector ltx2c_serial_load_f16(const char *from) {
    ltx2c_serial_vector v;
    LTX2C_LANES(i) v.lane[i] = ltx2c_from_f16(ltx2c_half(from, i));
    return v;
}

LTX2C_INLINE void ltx2c_serial_store_f16(char *to, ltx2c_serial_vector v) {
    uint16_t half[ltx2c_serial_lanes];
    LTX2C_LANES(i) half[i] = ltx2c_to_f16(v.lane[i]);
    memcpy(to, half, sizeof half);
}

LTX2C_INLINE void ltx2c_serial_split(ltx2c_serial_vector left, ltx2c_serial_vector right, ltx2c_serial_vector *even,
                                     ltx2c_serial_vector *odd) {
    const ltx2c_serial_vector both[2] = {left, right};
    LTX2C_LANES(i) {
        even->lane[i] = both[i * 2 / ltx2c_serial_lanes].lane[i * 2 % ltx2c_serial_lanes];
        odd->lane[i] = both[i * 2 / ltx2c_serial_lanes].lane[i * 2 % ltx2c_serial_lanes + 1];
    }
}

LTX2C_INLINE void ltx2c_serial_join(ltx2c_serial_vector even, ltx2c_serial_vector odd, ltx2c_serial_vector *left,
                                    ltx2c_serial_vector *right) {
    LTX2C_LANES(i) {
        const ltx2c_serial_vector *from = i % 2 ? &odd : &even;
        left->lane[i] = from->lane[i / 2];
        right->lane[i] = from->lane[(i + ltx2c_serial_lanes) / 2];
    }
}

LTX2C_INLINE void ltx2c_serial_get_bf16(const char *from, ltx2c_serial_vector *even, ltx2c_serial_vector *odd) {
    LTX2C_LANES(i) {
        even->lane[i] = ltx2c_from_bf16(ltx2c_half(from, 2 * i));
        odd->lane[i] = ltx2c_from_bf16(ltx2c_half(from, 2 * i + 1));
    }
}

LTX2C_INLINE ltx2c_serial_halves ltx2c_serial_to_bf16(ltx2c_serial_vector even, ltx2c_serial_vector odd) {
    ltx2c_serial_halves result;
    LTX2C_LANES(i) {
        result.half[2 * i] = ltx2c_to_bf16(even.lane[i]);
        result.half[2 * i + 1] = ltx2c_to_bf16(odd.lane[i]);
    }
    return result;
}

LTX2C_INLINE void ltx2c_serial_store_bf16(char *to, ltx2c_serial_halves halves) { memcpy(to, &halves, sizeof halves); }

LTX2C_INLINE int ltx2c_serial_special_bf16(ltx2c_serial_halves halves) {
    int special = 0;
    for (size_t i = 0; i < 2 * ltx2c_serial_lanes; i++) special |= (halves.half[i] & 0x7f80) == 0x7f80;
    return special;
}

LTX2C_INLINE ltx2c_serial_vector ltx2c_serial_round(ltx2c_serial_vector v) {
    LTX2C_LANES(i) v.lane[i] = ltx2c_from_bf16(ltx2c_to_bf16(v.lane[i]));
    return v;
}

LTX2C_INLINE ltx2c_serial_vector ltx2c_serial_canonical(ltx2c_serial_vector v) {
    LTX2C_LANES(i) v.lane[i] = v.lane[i] == v.lane[i] ? v.lane[i] : ltx2c_float(0x7fc00000);
    return v;
}

LTX2C_INLINE int ltx2c_serial_any_at_least(ltx2c_serial_vector even, ltx2c_serial_vector odd, uint32_t limit) {
    int reached = 0;
    LTX2C_LANES(i) {
        reached |= (ltx2c_bits(even.lane[i]) & 0x7fffffff) >= limit;
        reached |= (ltx2c_bits(odd.lane[i]) & 0x7fffffff) >= limit;
    }
    return reached;
}

LTX2C_INLINE void ltx2c_serial_prefetch(const int rows, const char *weight, ptrdiff_t stride, size_t panel_bytes) {
    (void)rows, (void)weight, (void)stride, (void)panel_bytes;
}

#undef LTX2C_LANES
#define LTX2C_VECTOR(name) ltx2c_serial_##name
#define LTX2C_TILE(name) ltx2c_serial_##name
#include "tile.h"

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

static float ltx2c_serial_peak(float seed) {
    float sum[LTX2C_SERIAL_PANEL] = {0};
    for (size_t k = 0; k < LTX2C_PEAK_STEPS; k++)
        for (size_t c = 0; c < LTX2C_SERIAL_PANEL; c++) sum[c] += seed * (float)c;
    return sum[0] + sum[LTX2C_SERIAL_PANEL - 1];
}

static const ltx2c_kernel ltx2c_serial = {
    .name = "serial",
    .unsupported = ltx2c_serial_unsupported,
    .panel = LTX2C_SERIAL_PANEL,
    .rows = ltx2c_serial_mr,
    .pair = 1,
    .blocking = {.panel_bytes = 24 << 10, .b_bytes = 256 << 10, .rows = 252, .stream_rows = 60, .columns = 1024},
    .pack_a = ltx2c_serial_pack_a,
    .pack_a_wide = ltx2c_serial_pack_a_wide,
    .pack_b_wide = ltx2c_serial_pack_b_wide,
    .pack_b = ltx2c_serial_pack_b,
    .strip = ltx2c_serial_strip_by_rows,
    .peak_macs = (uint64_t)LTX2C_PEAK_STEPS * LTX2C_SERIAL_PANEL,
    .peak = ltx2c_serial_peak,
};

#endif
