/* serial: portable C, the twin every other kernel is tested against.
 *
 * Assumes nothing beyond IEEE single precision. Panels of 16 columns in their natural order, one f32 per word; one row
 * at a time, multiply and add rounded separately (the build forbids contraction), so it needs no guard.
 */
#ifdef LTX2C_LISTING
&ltx2c_serial,
#elif !defined(LTX2C_SERIAL_H)
#define LTX2C_SERIAL_H

#include "core.h"

enum { LTX2C_SERIAL_PANEL = 16 };

static const char *ltx2c_serial_obstacle(void) { return NULL; }

static void ltx2c_serial_pack_a(uint32_t *to, size_t panel_words, const char *row, const char *next, size_t panels,
                                ltx2c_bounds *bounds) {
    (void)next;
    (void)bounds;
    for (size_t p = 0; p < panels; p++)
        for (size_t c = 0; c < LTX2C_SERIAL_PANEL; c++)
            to[p * panel_words + c] = (uint32_t)ltx2c_half(row, p * LTX2C_SERIAL_PANEL + c) << 16;
}

static void ltx2c_serial_pack_b(uint32_t *to, const char *row, size_t count, const float *scale,
                                ltx2c_bounds *bounds) {
    (void)bounds;
    for (size_t k = 0; k < count; k++) {
        const uint16_t half = ltx2c_half(row, k);
        to[k] = (uint32_t)(scale ? ltx2c_to_bf16(ltx2c_from_bf16(half) * *scale) : half) << 16;
    }
}

static void ltx2c_serial_product(float *sum, const uint32_t *a, const uint32_t *b, size_t depth) {
    for (size_t c = 0; c < LTX2C_SERIAL_PANEL; c++) sum[c] = 0.0f;
    for (size_t k = 0; k < depth; k++)
        for (size_t c = 0; c < LTX2C_SERIAL_PANEL; c++)
            sum[c] += ltx2c_float(b[k]) * ltx2c_float(a[k * LTX2C_SERIAL_PANEL + c]);
}

static uint64_t ltx2c_serial_strip(const ltx2c_strip *s) {
    const size_t panel_bytes = LTX2C_SERIAL_PANEL * ltx2c_itemsize(s->dtype);
    uint64_t nonfinite = 0;
    for (size_t r = 0; r < s->rows; r++) {
        for (size_t p = s->first; p < s->last; p++) {
            float aggregate[LTX2C_SERIAL_PANEL], sum[LTX2C_SERIAL_PANEL];
            for (size_t t = 0; t < s->term_count; t++) {
                const ltx2c_factors *f = &s->terms[t];
                ltx2c_serial_product(sum, f->a + p * f->depth * LTX2C_SERIAL_PANEL, f->b + r * f->b_stride, f->depth);
                for (size_t c = 0; c < LTX2C_SERIAL_PANEL; c++) {
                    float chained = t ? aggregate[c] + f->scale * sum[c] : sum[c];
                    aggregate[c] = ltx2c_from_bf16(ltx2c_to_bf16(chained));
                }
            }
            const size_t at = (p - s->first) * panel_bytes;
            for (size_t c = 0; c < LTX2C_SERIAL_PANEL; c++)
                nonfinite += (uint64_t)ltx2c_finish(s->out + (ptrdiff_t)r * s->out_stride + at,
                                                    s->weight + (ptrdiff_t)r * s->weight_stride + at, c, s->dtype,
                                                    aggregate[c]);
        }
    }
    return nonfinite;
}

static float ltx2c_serial_peak(float seed) {
    float sum[LTX2C_SERIAL_PANEL] = {0};
    for (size_t k = 0; k < LTX2C_PEAK_STEPS; k++)
        for (size_t c = 0; c < LTX2C_SERIAL_PANEL; c++) sum[c] += seed * (float)c;
    return sum[0] + sum[LTX2C_SERIAL_PANEL - 1];
}

static const ltx2c_kernel ltx2c_serial = {
    .name = "serial",
    .obstacle = ltx2c_serial_obstacle,
    .panel = LTX2C_SERIAL_PANEL,
    .rows = 6,
    .pair = 1,
    .pack_a = ltx2c_serial_pack_a,
    .pack_b = ltx2c_serial_pack_b,
    .strip = ltx2c_serial_strip,
    .peak_macs = LTX2C_PEAK_STEPS * LTX2C_SERIAL_PANEL,
    .peak = ltx2c_serial_peak,
};

#endif
