/* The sums of privcal.kernel along each row, compiled: with z = x − top,

       S0 = Σ exp(βz),   S1 = Σ z·exp(βz),   S2 = Σ z²·exp(βz).

   A row is worked in lanes, 16 of float or 8 of double: column j belongs to lane j mod 16 (or 8), whatever
   the width of the processor's registers. Every operation is a +, a − or a · of IEEE 754, rounded by itself
   (no -ffast-math, no contraction), a comparison, or one on bits. So the number of columns alone
   decides what is added to what in which order, and a row has the same bits wherever it lies, whatever
   its neighbours, and with every instruction set.

   The file includes itself: once for each instruction set, and there once for each pair of types. */

#ifndef SET

#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "intermediate results would be rounded twice"
#endif

#define RUN 32 /* numbers of a lane that are added in the working precision, before double takes over */
#define NARROW 32 /* columns up to which a lane has a row of its own */
#define LOG2_E 0x1.71547652b82fep+0

/* 2^r = 1 + r·q(r) for |r| ≤ 1/2, to a fifth of a last bit. */
static const float q_float[] = {0x1.62e43p-1f,  0x1.ebfbep-3f,   0x1.c6af6cp-5f,
                                0x1.3b2a54p-7f, 0x1.5f089p-10f, 0x1.44138ap-13f};
static const double q_double[] = {
    0x1.62e42fefa39efp-1,  0x1.ebfbdff82c598p-3,  0x1.c6b08d704a0c2p-5,  0x1.3b2ab6fba1ddap-7,
    0x1.5d87fe78a5276p-10, 0x1.430913096fd9fp-13, 0x1.ffcbfc670dcd4p-17, 0x1.62bfd47773353p-20,
    0x1.b524fae627834p-24, 0x1.e6063f7217bc6p-28, 0x1.e9d3fe3952179p-32};
typedef uint32_t bits_float;
typedef uint64_t bits_double;

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define VECTOR(of, lanes) of __attribute__((vector_size((lanes) * sizeof(of))))
#define INLINE static inline __attribute__((always_inline))
#define ARGUMENTS                                                                             \
    const char *x, ptrdiff_t stride, size_t rows, size_t columns, const double *top,          \
        const int64_t *without, double beta, double *s0, double *s1, double *s2

#define SET generic
#define WIDTH 16 /* bytes of a register */
#define TARGET
#include "compiled.c"
#undef SET
#undef WIDTH
#undef TARGET
#ifdef __x86_64__
#define SET avx2
#define WIDTH 32
#define TARGET __attribute__((target("avx2")))
#include "compiled.c"
#undef SET
#undef WIDTH
#undef TARGET
#define SET avx512
#define WIDTH 64
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#include "compiled.c"
#undef SET
#undef WIDTH
#undef TARGET
#endif

static void (*const table[][3])(ARGUMENTS) = {
    {sums_generic_float_float, sums_generic_float_double, sums_generic_double_double},
#ifdef __x86_64__
    {sums_avx2_float_float, sums_avx2_float_double, sums_avx2_double_double},
    {sums_avx512_float_float, sums_avx512_float_double, sums_avx512_double_double},
#endif
};

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* The digest of the text that this was built from: a library older than its text is not used. */
EXPORT const char *privcal_source(void) { return SOURCE; }

/* How many instruction sets of the table this processor has; the last of them is the fastest. */
EXPORT int privcal_sets(void) {
#ifdef __x86_64__
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2")) return 1;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? 3
               : 2;
#else
    return 1;
#endif
}

/* The sums of `rows` rows of `columns` numbers side by side, a row beginning `stride` bytes after the one
   before. `types`: 0 float worked as float, 1 float worked as double, 2 double worked as double.
   `top` is subtracted (null: 0), column `without` is left out (null: none); `s1` and `s2` may be null. */
EXPORT void privcal_sums(int set, int types, ARGUMENTS) {
    table[set][types](x, stride, rows, columns, top, without, beta, s0, s1, s2);
}

#elif !defined(IN)

#define IN float
#define WORK float
#include "compiled.c"
#undef WORK
#define WORK double
#include "compiled.c"
#undef IN
#define IN double
#include "compiled.c"
#undef IN
#undef WORK

#else

#define NAME(what) JOIN(what, JOIN(SET, JOIN(IN, WORK)))
#define LANES (64 / sizeof(WORK))
#define EACH (WIDTH / sizeof(WORK)) /* lanes in a register */
#define PARTS (64 / WIDTH)
#define DIGITS (sizeof(WORK) == 4 ? 23 : 52)
#define BIAS (sizeof(WORK) == 4 ? 127 : 1023)

typedef VECTOR(IN, EACH) NAME(loaded);
typedef VECTOR(WORK, EACH) NAME(reals);
typedef VECTOR(JOIN(bits, WORK), EACH) NAME(bits);

/* exp(βz) for z ≤ 0 as 2^t, t = β·log2(e)·z; where that is below the normal numbers it is 0, and so is z then,
   so that no ∞·0 is met. A NaN stays one. 2^0 is exactly 1. */
TARGET INLINE NAME(reals) NAME(power)(WORK scale, NAME(reals) *z) {
    const WORK *q = JOIN(q, WORK), magic = 3 * (WORK)((uint64_t)1 << (DIGITS - 1));
    const NAME(reals) t = *z * scale, whole = t + magic; /* rounded, in its last bits */
    const NAME(reals) r = t - (whole - magic);
    NAME(reals) p = r * q[sizeof JOIN(q, WORK) / sizeof *q - 1];
    for (int i = sizeof JOIN(q, WORK) / sizeof *q - 2; i >= 0; i--) p = (p + q[i]) * r;
    const NAME(bits) two = ((NAME(bits))whole + BIAS) << DIGITS;
    const NAME(bits) keep = ~(NAME(bits))(t < (WORK)(2 - BIAS));
    *z = (NAME(reals))((NAME(bits))*z & keep);
    return (NAME(reals))((NAME(bits))((p + 1) * (NAME(reals))two) & keep);
}

TARGET INLINE void NAME(add)(WORK scale, NAME(reals) z, NAME(reals) *a0, NAME(reals) *a1, NAME(reals) *a2,
                             int moments) {
    NAME(reals) e = NAME(power)(scale, &z);
    *a0 += e;
    if (moments) e *= z, *a1 += e, *a2 += e * z;
}

/* Adds the lanes of a run to eight totals. */
TARGET INLINE void NAME(join)(double *total, const NAME(reals) *run) {
    WORK lane[LANES];
    memcpy(lane, run, sizeof lane);
    for (size_t i = 0; i < 8; i++)
        total[i] += LANES == 8 ? (double)lane[i] : (double)lane[i] + (double)lane[i + LANES / 2];
}

TARGET INLINE double NAME(across)(const double *t) {
    return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

/* Few columns: each lane has a row of its own. */
TARGET INLINE void NAME(narrow)(ARGUMENTS, int moments) {
    const WORK scale = (WORK)(beta * LOG2_E);
    WORK turned[NARROW][LANES] = {{0}};
    for (size_t row = 0; row < rows; row += LANES) {
        const size_t here = rows - row < LANES ? rows - row : LANES;
        for (size_t i = 0; i < here; i++, x += stride) {
            const WORK shift = top ? (WORK)top[row + i] : 0;
            for (size_t j = 0; j < columns; j++) {
                IN v;
                memcpy(&v, x + j * sizeof v, sizeof v);
                turned[j][i] = (WORK)v - shift;
            }
            if (without) turned[without[row + i]][i] = -__builtin_inf();
        }
        NAME(reals) a0[PARTS] = {{0}}, a1[PARTS] = {{0}}, a2[PARTS] = {{0}};
        for (size_t j = 0; j < columns; j++) {
#pragma GCC unroll 4
            for (size_t part = 0; part < PARTS; part++) {
                NAME(reals) z;
                memcpy(&z, turned[j] + part * EACH, sizeof z);
                NAME(add)(scale, z, a0 + part, a1 + part, a2 + part, moments);
            }
        }
        for (size_t i = 0; i < here; i++) {
            s0[row + i] = a0[i / EACH][i % EACH];
            if (moments) s1[row + i] = a1[i / EACH][i % EACH], s2[row + i] = a2[i / EACH][i % EACH];
        }
    }
}

/* Many columns: all lanes work on one row. */
TARGET INLINE void NAME(wide)(ARGUMENTS, int moments) {
    const WORK scale = (WORK)(beta * LOG2_E);
    IN last[LANES]; /* the columns left over, and behind them what counts as nothing */
    for (size_t i = 0; i < LANES; i++) last[i] = -__builtin_inf();
    for (size_t row = 0; row < rows; row++, x += stride) {
        const WORK shift = top ? (WORK)top[row] : 0;
        const size_t skip = without ? (size_t)without[row] : columns;
        double t0[8] = {0}, t1[8] = {0}, t2[8] = {0};
        for (size_t start = 0, end; start < columns; start = end) {
            end = columns - start < RUN * LANES ? columns : start + RUN * LANES;
            NAME(reals) a0[PARTS] = {{0}}, a1[PARTS] = {{0}}, a2[PARTS] = {{0}};
            for (size_t j = start; j < end; j += LANES) {
                const char *from = x + j * sizeof(IN);
                if (end - j < LANES) from = memcpy(last, from, (end - j) * sizeof(IN));
#pragma GCC unroll 4
                for (size_t part = 0; part < PARTS; part++) {
                    NAME(loaded) v;
                    memcpy(&v, from + part * sizeof v, sizeof v);
                    NAME(reals) z = __builtin_convertvector(v, NAME(reals)) - shift;
                    if (without && skip - j - part * EACH < EACH)
                        z[skip - j - part * EACH] = -__builtin_inf();
                    NAME(add)(scale, z, a0 + part, a1 + part, a2 + part, moments);
                }
            }
            NAME(join)(t0, a0);
            if (moments) NAME(join)(t1, a1), NAME(join)(t2, a2);
        }
        s0[row] = NAME(across)(t0);
        if (moments) s1[row] = NAME(across)(t1), s2[row] = NAME(across)(t2);
    }
}

TARGET static void NAME(sums)(ARGUMENTS) {
#define SUMS(how, without, moments)                                                           \
    NAME(how)(x, stride, rows, columns, top, without, beta, s0, s1, s2, moments)
    if (columns <= NARROW) {
        if (s1) SUMS(narrow, NULL, 1);
        else SUMS(narrow, without, 0);
    } else if (s1) SUMS(wide, NULL, 1);
    else if (without) SUMS(wide, without, 0);
    else SUMS(wide, NULL, 0);
#undef SUMS
}

#undef NAME
#undef LANES
#undef EACH
#undef PARTS
#undef DIGITS
#undef BIAS

#endif
