/* From products to a stored weight: the chain over terms, decoding, adding, encoding, once for all instruction sets.
 *
 * A kernel's header includes this after its own vectors and products, with
 *
 *     LTX2C_VECTOR(name)   its vectors: ltx2c_<set>_<name>, for the names below
 *     LTX2C_TILE(name)     what is its own: ltx2c_<kernel>_<name> (genoa has skylake's vectors, and products of its own)
 *     LTX2C_PLAIN          defined if it has a tile of its own for one term, a bf16 weight and LTX
 *
 * Vectors: enum mr, lanes, vectors (of a row of a tile: a panel has lanes * vectors columns); types vector, halves
 * (2 * lanes of 16 bits), tile (vector [mr][vectors]); splat, add, mul; load, store (f32, any address), load_f16,
 * store_f16; keep, kept (f32, aligned); split and join (columns in natural order to even and odd ones, and back);
 * get_bf16, to_bf16, special_bf16 (some value is inf or NaN), store_bf16; round (to bf16; a NaN's low half must be
 * clear), canonical (NaNs made so), any_at_least (a magnitude, as f32 bits); prefetch (rows).
 * Tile: term (one term's product, by whichever instruction is exact).
 *
 * Within a panel, each 2 * lanes columns lie as the even ones and then the odd ones: so a vector of bf16 splits into
 * two of f32 by one shift and one mask.
 */
#define V LTX2C_VECTOR
#define T LTX2C_TILE

/* ---- Decode, encode ---------------------------------------------------------------------------------------------- */

/* 2 * lanes columns at any address. */
LTX2C_INLINE void T(get)(ltx2c_dtype dtype, const char *from, V(vector) *even, V(vector) *odd) {
    if (dtype == LTX2C_BF16)
        V(get_bf16)(from, even, odd);
    else if (dtype == LTX2C_F32)
        V(split)(V(load)(from), V(load)(from + 4 * V(lanes)), even, odd);
    else
        V(split)(V(load_f16)(from), V(load_f16)(from + 2 * V(lanes)), even, odd);
}

/* The same, stored, rounded to nearest even. Where a value became inf or NaN, the next doubt tells what was there before.
 * In bf16 a NaN's low half must be clear. Returns the next free doubt. */
LTX2C_INLINE ltx2c_doubt *T(put)(ltx2c_dtype dtype, char *out, const char *weight, V(vector) even, V(vector) odd,
                                 ltx2c_doubt *doubt) {
    const size_t bytes = 2 * V(lanes) * ltx2c_itemsize(dtype);
    V(vector) left, right;
    if (dtype == LTX2C_BF16) {
        const V(halves) result = V(to_bf16)(even, odd);
        if (__builtin_expect(V(special_bf16)(result), 0)) {
            memcpy(doubt->before, weight, bytes);
            doubt++->out = out;
        }
        V(store_bf16)(out, result);
        return doubt;
    }
    /* from 65520 on a value becomes inf in f16 */
    if (__builtin_expect(V(any_at_least)(even, odd, dtype == LTX2C_F32 ? 0x7f800000 : 0x477ff000), 0)) {
        memcpy(doubt->before, weight, bytes);
        doubt++->out = out;
    }
    V(join)(even, odd, &left, &right);
    if (dtype == LTX2C_F32) {
        V(store)(out, left);
        V(store)(out + 4 * V(lanes), right);
    } else {
        V(store_f16)(out, left);
        V(store_f16)(out + 2 * V(lanes), right);
    }
    return doubt;
}

static void T(pack_a_wide)(uint32_t *to, size_t panel_words, const char *row, ltx2c_dtype dtype, size_t panels) {
    const size_t bytes = 2 * V(lanes) * ltx2c_itemsize(dtype);
    for (size_t p = 0; p < panels; p++, to += panel_words)
        for (size_t v = 0; v < V(vectors); v += 2, row += bytes) {
            V(vector) even, odd;
            T(get)(dtype, row, &even, &odd);
            V(keep)((float *)to + v * V(lanes), even);
            V(keep)((float *)to + (v + 1) * V(lanes), odd);
        }
}

static void T(pack_b_wide)(uint32_t *to, const char *row, ltx2c_dtype dtype, size_t count) {
    size_t k = 0;
    if (dtype == LTX2C_F32) {
        memcpy(to, row, count * sizeof *to);
        return;
    }
    if (dtype == LTX2C_F16)
        for (; k + V(lanes) <= count; k += V(lanes)) V(keep)((float *)to + k, V(load_f16)(row + 2 * k));
    for (; k < count; k++) to[k] = ltx2c_bits(ltx2c_load(row, k, dtype));
}

/* ---- Chain over terms -------------------------------------------------------------------------------------------- */

/* 2 * lanes columns of a full term, NaNs canonical. */
LTX2C_INLINE void T(get_full)(ltx2c_dtype dtype, const char *from, V(vector) *even, V(vector) *odd) {
    T(get)(dtype, from, even, odd);
    if (dtype == LTX2C_BF16) return; /* whose NaNs have what rounding asks of them */
    *even = V(canonical)(*even);
    *odd = V(canonical)(*odd);
}

/* A full term's values in the place of a product. */
LTX2C_INLINE void T(full)(const int rows, const ltx2c_factors *f, size_t panel, V(tile) sum) {
    const size_t bytes = 2 * V(lanes) * ltx2c_itemsize(f->full_dtype);
    const char *from = f->full + panel * (V(vectors) / 2) * bytes;
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < V(vectors); v += 2)
            T(get_full)(f->full_dtype, from + r * f->full_stride + v / 2 * bytes, &sum[r][v], &sum[r][v + 1]);
    }
}

LTX2C_INLINE void T(scale)(const int rows, V(tile) sum, float strength) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < V(vectors); v++) sum[r][v] = V(mul)(V(splat)(strength), sum[r][v]);
    }
}

LTX2C_INLINE void T(add_kept)(const int rows, V(tile) sum, const float *total) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < V(vectors); v++)
            sum[r][v] = V(add)(V(kept)(total + (r * V(vectors) + v) * V(lanes)), sum[r][v]);
    }
}

LTX2C_INLINE void T(add_weight)(const int rows, V(tile) sum, const char *weight, ptrdiff_t stride, ltx2c_dtype dtype) {
    const size_t bytes = 2 * V(lanes) * ltx2c_itemsize(dtype);
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < V(vectors); v += 2) {
            V(vector) even, odd;
            T(get)(dtype, weight + r * stride + v / 2 * bytes, &even, &odd);
            sum[r][v] = V(add)(even, sum[r][v]);
            sum[r][v + 1] = V(add)(odd, sum[r][v + 1]);
        }
    }
}

LTX2C_INLINE void T(round_all)(const int rows, V(tile) sum) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < V(vectors); v++) sum[r][v] = V(round)(sum[r][v]);
    }
}

LTX2C_INLINE void T(canonical_all)(const int rows, V(tile) sum) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < V(vectors); v++) sum[r][v] = V(canonical)(sum[r][v]);
    }
}

/* What has been summed waits in L1 while a later term's product has the registers. */
LTX2C_INLINE void T(keep_all)(const int rows, V(tile) sum, float *total) {
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < V(vectors); v++) V(keep)(total + (r * V(vectors) + v) * V(lanes), sum[r][v]);
    }
}

/* One term's product, or its full values. */
LTX2C_INLINE void T(accumulate)(const int rows, const ltx2c_strip *s, const ltx2c_factors *f, size_t p, V(tile) sum) {
    if (f->full)
        T(full)(rows, f, p - s->first, sum);
    else
        T(term)(rows, !ltx2c_through_bf16(s->arithmetic), f, p, sum);
}

/* All terms of one panel: the aggregate, or the total where that starts at the weight. */
LTX2C_INLINE void T(chain)(const int rows, const ltx2c_strip *s, size_t p, const char *weight, V(tile) sum) {
    float total[V(mr) * V(vectors) * V(lanes)] __attribute__((aligned(64)));
    const int through_bf16 = ltx2c_through_bf16(s->arithmetic);
    T(accumulate)(rows, s, s->terms, p, sum);
    if (!through_bf16 || s->terms->full) T(scale)(rows, sum, s->terms->strength); /* else the strength is in B */
    if (ltx2c_starts_at_weight(s->arithmetic)) T(add_weight)(rows, sum, weight, s->weight_stride, s->dtype);
    if (through_bf16) T(round_all)(rows, sum);
    for (size_t t = 1; t < s->term_count; t++) {
        T(keep_all)(rows, sum, total);
        T(accumulate)(rows, s, &s->terms[t], p, sum);
        T(scale)(rows, sum, s->terms[t].strength);
        T(add_kept)(rows, sum, total);
        if (through_bf16) T(round_all)(rows, sum);
    }
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

LTX2C_INLINE uint64_t T(store_all)(const int rows, V(tile) sum, const ltx2c_strip *s, const ltx2c_dtype dtype, char *out,
                                   const char *weight) {
    const ptrdiff_t out_stride = s->out_stride, weight_stride = s->weight_stride;
    const size_t bytes = 2 * V(lanes) * ltx2c_itemsize(dtype);
    ltx2c_doubt doubts[V(mr) * V(vectors) / 2], *end = doubts;
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < V(vectors); v += 2) {
            const size_t at = v / 2 * bytes;
            end = T(put)(dtype, out + r * out_stride + at, weight + r * weight_stride + at, sum[r][v], sum[r][v + 1],
                         end);
        }
    }
    return __builtin_expect(end == doubts, 1) ? 0 : ltx2c_settle(doubts, end, 2 * V(lanes), dtype);
}

/* Aggregate or total to the stored dtype. */
LTX2C_INLINE uint64_t T(finish)(const int rows, V(tile) sum, const ltx2c_strip *s, char *out, const char *weight) {
    if (!ltx2c_starts_at_weight(s->arithmetic)) T(add_weight)(rows, sum, weight, s->weight_stride, s->dtype);
    if (!ltx2c_rounds_sum(s->arithmetic) || s->dtype != LTX2C_BF16) T(canonical_all)(rows, sum);
    if (s->dtype == LTX2C_BF16) return T(store_all)(rows, sum, s, LTX2C_BF16, out, weight);
    if (ltx2c_rounds_sum(s->arithmetic)) T(round_all)(rows, sum);
    if (s->dtype == LTX2C_F32) return T(store_all)(rows, sum, s, LTX2C_F32, out, weight);
    return T(store_all)(rows, sum, s, LTX2C_F16, out, weight);
}

LTX2C_INLINE uint64_t T(any_tile)(const int rows, const ltx2c_strip *s, size_t p, char *out, const char *weight) {
    V(tile) sum;
    T(chain)(rows, s, p, weight, sum);
    return T(finish)(rows, sum, s, out, weight);
}

#ifndef LTX2C_PLAIN
LTX2C_INLINE int T(plain_is_exact)(const ltx2c_strip *s, size_t p) {
    (void)s, (void)p;
    return 1;
}

/* One term of low rank, a bf16 weight, LTX: most tiles that there are. */
LTX2C_INLINE uint64_t T(plain_tile)(const int rows, const ltx2c_strip *s, size_t p, char *out, const char *weight) {
    const ptrdiff_t out_stride = s->out_stride, weight_stride = s->weight_stride;
    ltx2c_doubt doubts[V(mr) * V(vectors) / 2], *end = doubts;
    V(tile) sum;
    T(term)(rows, 0, s->terms, p, sum);
    LTX2C_UNROLL
    for (int r = 0; r < rows; r++) {
        LTX2C_UNROLL
        for (int v = 0; v < V(vectors); v += 2) {
            const char *from = weight + r * weight_stride + v / 2 * 4 * V(lanes);
            V(vector) even, odd;
            V(get_bf16)(from, &even, &odd);
            even = V(add)(V(round)(sum[r][v]), even);
            odd = V(add)(V(round)(sum[r][v + 1]), odd);
            end = T(put)(LTX2C_BF16, out + r * out_stride + v / 2 * 4 * V(lanes), from, even, odd, end);
        }
    }
    return __builtin_expect(end == doubts, 1) ? 0 : ltx2c_settle(doubts, end, 2 * V(lanes), LTX2C_BF16);
}
#endif

/* ---- Full terms alone -------------------------------------------------------------------------------------------- */

LTX2C_INLINE void T(scale_pair)(V(vector) pair[2], float strength) {
    pair[0] = V(mul)(V(splat)(strength), pair[0]);
    pair[1] = V(mul)(V(splat)(strength), pair[1]);
}

LTX2C_INLINE void T(add_pair)(V(vector) pair[2], const V(vector) more[2]) {
    pair[0] = V(add)(more[0], pair[0]);
    pair[1] = V(add)(more[1], pair[1]);
}

LTX2C_INLINE void T(round_pair)(V(vector) pair[2]) {
    pair[0] = V(round)(pair[0]);
    pair[1] = V(round)(pair[1]);
}

LTX2C_INLINE const char *T(full_at)(const ltx2c_factors *f, size_t row, size_t at) {
    return f->full + (ptrdiff_t)row * f->full_stride + at * 2 * V(lanes) * ltx2c_itemsize(f->full_dtype);
}

/* 2 * lanes columns of a row, from the `at`-th such on: the same steps as a tile's, on two vectors. `alone`: there is one
 * term, of this dtype. */
LTX2C_INLINE uint64_t T(full_pair)(const ltx2c_strip *s, const ltx2c_factors *first, const int alone, const char *weight,
                                   char *out, size_t row, size_t at) {
    V(vector) sum[2], stored[2];
    T(get)(s->dtype, weight, &stored[0], &stored[1]);
    T(get_full)(first->full_dtype, T(full_at)(first, row, at), &sum[0], &sum[1]);
    T(scale_pair)(sum, first->strength);
    if (ltx2c_starts_at_weight(s->arithmetic)) T(add_pair)(sum, stored);
    if (ltx2c_through_bf16(s->arithmetic)) T(round_pair)(sum);
    for (size_t t = 1; !alone && t < s->term_count; t++) {
        const ltx2c_factors *f = &s->terms[t];
        V(vector) term[2];
        T(get_full)(f->full_dtype, T(full_at)(f, row, at), &term[0], &term[1]);
        T(scale_pair)(term, f->strength);
        T(add_pair)(sum, term);
        if (ltx2c_through_bf16(s->arithmetic)) T(round_pair)(sum);
    }
    if (!ltx2c_starts_at_weight(s->arithmetic)) T(add_pair)(sum, stored);
    if (!ltx2c_rounds_sum(s->arithmetic) || s->dtype != LTX2C_BF16) {
        sum[0] = V(canonical)(sum[0]);
        sum[1] = V(canonical)(sum[1]);
    }
    if (ltx2c_rounds_sum(s->arithmetic) && s->dtype != LTX2C_BF16) T(round_pair)(sum);
    ltx2c_doubt doubt, *end = T(put)(s->dtype, out, weight, sum[0], sum[1], &doubt);
    return __builtin_expect(end == &doubt, 1) ? 0 : ltx2c_settle(&doubt, end, 2 * V(lanes), s->dtype);
}

/* The strip and its first term are copies: what a kernel stores cannot change them, so they stay in registers. */
LTX2C_INLINE uint64_t T(full_rows)(const ltx2c_strip s, const ltx2c_factors first, const int alone) {
    const size_t pairs = (s.last - s.first) * (V(vectors) / 2), bytes = 2 * V(lanes) * ltx2c_itemsize(s.dtype);
    uint64_t nonfinite = 0;
    for (size_t row = 0; row < s.rows; row++) {
        const char *weight = s.weight + (ptrdiff_t)row * s.weight_stride;
        char *out = s.out + (ptrdiff_t)row * s.out_stride;
        for (size_t at = 0; at < pairs; at++)
            nonfinite += T(full_pair)(&s, &first, alone, weight + at * bytes, out + at * bytes, row, at);
    }
    return nonfinite;
}

LTX2C_APART uint64_t T(any_full_rows)(const ltx2c_strip *s) { return T(full_rows)(*s, *s->terms, 0); }

/* One term of a dtype known, into a bf16 weight. */
LTX2C_INLINE uint64_t T(full_rows_of)(const ltx2c_strip *s, const ltx2c_dtype full_dtype) {
    ltx2c_strip strip = *s;
    ltx2c_factors first = *s->terms;
    strip.dtype = LTX2C_BF16;
    strip.arithmetic = LTX2C_ARITHMETIC_LTX;
    first.full_dtype = full_dtype;
    return T(full_rows)(strip, first, 1);
}

/* No product wants the registers: row by row, as the values lie in memory. One term, into a bf16 weight, is what there
 * is most of. */
LTX2C_APART uint64_t T(full_strip)(const ltx2c_strip *s) {
    if (s->term_count > 1 || s->dtype != LTX2C_BF16 || s->arithmetic != LTX2C_ARITHMETIC_LTX)
        return T(any_full_rows)(s);
    if (s->terms->full_dtype == LTX2C_BF16) return T(full_rows_of)(s, LTX2C_BF16);
    if (s->terms->full_dtype == LTX2C_F32) return T(full_rows_of)(s, LTX2C_F32);
    return T(full_rows_of)(s, LTX2C_F16);
}

LTX2C_INLINE int T(only_full)(const ltx2c_strip *s) {
    for (size_t t = 0; t < s->term_count; t++)
        if (!s->terms[t].full) return 0;
    return 1;
}

/* ---- Strips ------------------------------------------------------------------------------------------------------ */

typedef uint64_t T(tile_function)(const ltx2c_strip *s, size_t p, char *out, const char *weight);

LTX2C_INLINE uint64_t T(rows)(const int rows, const ltx2c_strip *s, T(tile_function) *any_tile) {
    const size_t panel_bytes = V(lanes) * V(vectors) * ltx2c_itemsize(s->dtype);
    const int plain = s->term_count == 1 && !s->terms->full && s->dtype == LTX2C_BF16 &&
                      s->arithmetic == LTX2C_ARITHMETIC_LTX;
    const char *weight = s->weight;
    char *out = s->out;
    uint64_t nonfinite = 0;
    V(prefetch)(rows, weight, s->weight_stride, panel_bytes);
    for (size_t p = s->first; p < s->last; p++, out += panel_bytes, weight += panel_bytes) {
        if (plain && T(plain_is_exact)(s, p))
            nonfinite += T(plain_tile)(rows, s, p, out, weight);
        else
            nonfinite += any_tile(s, p, out, weight);
    }
    return nonfinite;
}

#define LTX2C_ROWS(n)                                                                                                \
    LTX2C_APART uint64_t T(any_##n)(const ltx2c_strip *s, size_t p, char *out, const char *weight) {                 \
        return T(any_tile)(n, s, p, out, weight);                                                                    \
    }                                                                                                                \
    static uint64_t T(rows_##n)(const ltx2c_strip *s) { return T(rows)(n, s, T(any_##n)); }
LTX2C_ROWS(1)
LTX2C_ROWS(2)
LTX2C_ROWS(3)
LTX2C_ROWS(4)
LTX2C_ROWS(5)
LTX2C_ROWS(6)
#undef LTX2C_ROWS

static uint64_t T(strip_by_rows)(const ltx2c_strip *s) {
    static uint64_t (*const by_rows[])(const ltx2c_strip *) = {T(rows_1), T(rows_2), T(rows_3),
                                                               T(rows_4), T(rows_5), T(rows_6)};
    return T(only_full)(s) ? T(full_strip)(s) : by_rows[s->rows - 1](s);
}

#undef T
#undef V
#undef LTX2C_VECTOR
#undef LTX2C_TILE
