/* The AVX-512 intrinsics that the skylake and genoa kernels use, lane by lane in C, after the "Operation" paragraphs of
 * Intel's manual: so that both run, slowly, on a CPU that has none of it. Stands before the compiler's own header. */
#ifndef LTX2C_EMULATED_H
#define LTX2C_EMULATED_H

#include <stdint.h>
#include <string.h>
#include <xmmintrin.h>

typedef float __m512 __attribute__((vector_size(64)));
typedef uint32_t __m512i __attribute__((vector_size(64)));
typedef uint16_t __m512bh __attribute__((vector_size(64)));
typedef uint16_t __m256i __attribute__((vector_size(32)));
typedef uint16_t __mmask16;
typedef uint32_t __mmask32;

#define E static inline __attribute__((always_inline))
#define LANES(n) for (int i = 0; i < (n); i++)
#define _CMP_UNORD_Q 3
#define _MM_FROUND_TO_NEAREST_INT 0

/* ---- Memory, casts ----------------------------------------------------------------------------------------------- */

#define LOAD(name, type, from) \
    E type name(const from *p) { type v; memcpy(&v, p, sizeof v); return v; }
#define STORE(name, type, to) \
    E void name(to *p, type v) { memcpy(p, &v, sizeof v); }
LOAD(_mm256_loadu_si256, __m256i, void)
LOAD(_mm512_load_ps, __m512, void)
LOAD(_mm512_loadu_ps, __m512, void)
LOAD(_mm512_load_si512, __m512i, void)
LOAD(_mm512_loadu_si512, __m512i, void)
STORE(_mm256_storeu_si256, __m256i, void)
STORE(_mm512_store_ps, __m512, void)
STORE(_mm512_storeu_ps, __m512, void)
STORE(_mm512_store_si512, __m512i, void)
STORE(_mm512_storeu_si512, __m512i, void)

E __m512i _mm512_castps_si512(__m512 v) { return (__m512i)v; }
E __m512 _mm512_castsi512_ps(__m512i v) { return (__m512)v; }

E __m256i _mm512_extracti64x4_epi64(__m512i v, int half) {
    __m256i r;
    memcpy(&r, (const char *)&v + 32 * half, sizeof r);
    return r;
}

E __m256i _mm512_castsi512_si256(__m512i v) { return _mm512_extracti64x4_epi64(v, 0); }

/* ---- Constants ---------------------------------------------------------------------------------------------------- */

E __m512 _mm512_setzero_ps(void) { return (__m512){0}; }
E __m512 _mm512_set1_ps(float x) { return (__m512){0} + x; }
E __m512i _mm512_set1_epi32(int x) { return (__m512i){0} + (uint32_t)x; }
E __m512i _mm512_set1_epi16(int x) { return (__m512i)((__m512bh){0} + (uint16_t)x); }
#define _mm512_setr_epi32(...) ((__m512i){__VA_ARGS__})

/* ---- Integers ----------------------------------------------------------------------------------------------------- */

E __m512i _mm512_add_epi32(__m512i a, __m512i b) { return a + b; }
E __m512i _mm512_sub_epi32(__m512i a, __m512i b) { return a - b; }
E __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
E __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
E __m512i _mm512_slli_epi32(__m512i a, int n) { return a << n; }
E __m512i _mm512_srli_epi32(__m512i a, int n) { return a >> n; }
E __m512i _mm512_rol_epi32(__m512i a, int n) { return a << n | a >> (32 - n); }
E __m512i _mm512_add_epi16(__m512i a, __m512i b) { return (__m512i)((__m512bh)a + (__m512bh)b); }
E __m512i _mm512_sub_epi16(__m512i a, __m512i b) { return (__m512i)((__m512bh)a - (__m512bh)b); }
#define _mm512_ternarylogic_epi32(a, b, c, table)                                  \
    ({                                                                             \
        _Static_assert((table) == 0xca || (table) == 0xae, "a ? b : c, !a & b | c"); \
        (table) == 0xca ? ((a) & (b)) | (~(a) & (c)) : (~(a) & (b)) | (c);           \
    })

#define CHOOSE(name, type, operator)                                         \
    E __m512i name(__m512i x, __m512i y) {                                   \
        type a = (type)x, b = (type)y;                                       \
        LANES((int)(64 / sizeof a[0])) a[i] = a[i] operator b[i] ? a[i] : b[i]; \
        return (__m512i)a;                                                   \
    }
CHOOSE(_mm512_max_epu16, __m512bh, >)
CHOOSE(_mm512_min_epu16, __m512bh, <)
CHOOSE(_mm512_max_epu32, __m512i, >)

#define COMPARE(name, mask, type, vector, expression)          \
    E mask name(vector x, vector y) {                          \
        type a = (type)x, b = (type)y;                         \
        mask r = 0;                                            \
        LANES((int)(64 / sizeof a[0])) r |= (mask)(expression) << i; \
        return r;                                              \
    }
COMPARE(_mm512_cmpeq_epi16_mask, __mmask32, __m512bh, __m512i, a[i] == b[i])
COMPARE(_mm512_testn_epi16_mask, __mmask32, __m512bh, __m512i, (a[i] & b[i]) == 0)
COMPARE(_mm512_cmpge_epu32_mask, __mmask16, __m512i, __m512i, a[i] >= b[i])
COMPARE(_mm512_cmpneq_epi32_mask, __mmask16, __m512i, __m512i, a[i] != b[i])
COMPARE(emulated_unordered, __mmask16, __m512, __m512, a[i] != a[i] || b[i] != b[i])
#define _mm512_cmp_ps_mask(a, b, predicate) \
    ({ _Static_assert((predicate) == _CMP_UNORD_Q, "unordered"); emulated_unordered(a, b); })

E __m512i _mm512_mask_mov_epi16(__m512i x, __mmask32 m, __m512i y) {
    __m512bh a = (__m512bh)x, b = (__m512bh)y;
    LANES(32) a[i] = m >> i & 1 ? b[i] : a[i];
    return (__m512i)a;
}

E __m512 _mm512_mask_mov_ps(__m512 a, __mmask16 m, __m512 b) {
    LANES(16) a[i] = m >> i & 1 ? b[i] : a[i];
    return a;
}

E __m512i _mm512_cvtepu16_epi32(__m256i a) {
    __m512i r;
    LANES(16) r[i] = a[i];
    return r;
}

E __m512 _mm512_permutex2var_ps(__m512 a, __m512i index, __m512 b) {
    __m512 r;
    LANES(16) r[i] = index[i] & 16 ? b[index[i] & 15] : a[index[i] & 15];
    return r;
}

E __m512i _mm512_permutex2var_epi16(__m512i x, __m512i indices, __m512i y) {
    __m512bh a = (__m512bh)x, b = (__m512bh)y, index = (__m512bh)indices, r;
    LANES(32) r[i] = index[i] & 32 ? b[index[i] & 31] : a[index[i] & 31];
    return (__m512i)r;
}

/* ---- Numbers ------------------------------------------------------------------------------------------------------ */

E __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
E __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }

E __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    LANES(16) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}

E float _mm512_reduce_add_ps(__m512 a) {
    float r = 0;
    LANES(16) r += a[i];
    return r;
}

E __m512 _mm512_cvtph_ps(__m256i a) {
    __m512 r;
    LANES(16) {
        const uint16_t half = a[i];
        _Float16 value;
        memcpy(&value, &half, sizeof value);
        r[i] = (float)value;
    }
    return r;
}

E __m256i _mm512_cvtps_ph(__m512 a, int rounding) {
    __m256i r;
    (void)rounding;
    LANES(16) {
        const _Float16 value = (_Float16)a[i];
        uint16_t half;
        memcpy(&half, &value, sizeof half);
        r[i] = half;
    }
    return r;
}

/* VCVTNE2PS2BF16: the second operand's values in the lower half; denormals are zeros; NaNs become quiet. */
E __m512bh _mm512_cvtne2ps_pbh(__m512 a, __m512 b) {
    __m512i upper = (__m512i)a, lower = (__m512i)b;
    __m512bh r;
    LANES(32) {
        const uint32_t bits = i < 16 ? lower[i & 15] : upper[i & 15], magnitude = bits & 0x7fffffff;
        if (magnitude > 0x7f800000)
            r[i] = (uint16_t)(bits >> 16 | 0x40);
        else if (magnitude < 0x00800000)
            r[i] = (uint16_t)(bits >> 16 & 0x8000);
        else
            r[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    return r;
}

/* Denormals are zeros, in and out. */
E float emulated_flushed(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (!(bits & 0x7f800000)) bits &= 0x80000000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

E float emulated_step(uint16_t b, uint16_t a, float sum) {
    const uint32_t wide[2] = {(uint32_t)b << 16, (uint32_t)a << 16};
    float value[2];
    memcpy(value, wide, sizeof value);
    return emulated_flushed(
        __builtin_fmaf(emulated_flushed(value[0]), emulated_flushed(value[1]), emulated_flushed(sum)));
}

/* VDPBF16PS: the odd (upper) value of each pair first, then the even one, each step rounded. */
E __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh b, __m512bh a) {
    LANES(16) {
        const float odd = emulated_step(b[2 * i + 1], a[2 * i + 1], sum[i]);
        sum[i] = emulated_step(b[2 * i], a[2 * i], odd);
    }
    return sum;
}

#undef E
#undef LANES
#undef LOAD
#undef STORE
#undef CHOOSE
#undef COMPARE
#endif
