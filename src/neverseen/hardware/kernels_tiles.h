/* The loops of kernels.c for vectors of BYTES bytes: once for 64-bit integers (KIND whole), once for float64 (KIND real).
   This file includes itself for the second, and then forgets the instruction set. */

#ifndef KIND
#define KIND whole
#define T uint64_t /* unsigned: it wraps */
#define E int32_t  /* what `update` multiplies: codes of GATHER samples, two of 16 bits or four of 8 */
#include "kernels_tiles.h"
#define KIND real
#define REAL
#define T double
#define E double
#include "kernels_tiles.h"
#undef REAL
#undef SET
#undef BYTES
#undef ROWS
#undef TARGET
#undef MULTIPLY_PAIRS
#undef ADD_QUADS
#undef MULTIPLY_NARROW
#undef ADD_CHOSEN
#else

/* Vectors that may stand at any number's address. */
typedef T NAME(vec) __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
typedef E NAME(evec) __attribute__((vector_size(BYTES), aligned(sizeof(E)), may_alias));
#define VEC NAME(vec)
#define EVEC NAME(evec)
#define LANES (BYTES / (long)sizeof(T))
/* `other`: how the matrix is read and multiplied. For float64 (real), it holds 64-bit integers. For integers (whole), all
   numbers have 32 bits, and processors multiply these faster. NUMBER and NUMBERS read one, and a vector; EACH reads one for all
   places of a vector. */
#if defined(REAL)
typedef int64_t NAME(ivec) __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
#define NUMBER(g, other) ((other) ? (T) * (const int64_t *)(const void *)(g) : *(g))
#define NUMBERS(g, other) ((other) ? __builtin_convertvector(*(const NAME(ivec) *)(const void *)(g), VEC) : *(const VEC *)(g))
#define INTEGER(g) (*(const int64_t *)(const void *)(g))
#define EACH(g, other) ((other) ? (VEC)__builtin_convertvector(INTEGER(g) - (NAME(ivec)){0}, VEC) : (VEC)(*(g) - (VEC){0}))
#define COPIED(other) 0 /* copying has converted them */
#else
#define EACH(g, other) ((void)(other), *(g) - (VEC){0})
#define COPIED(other) (other)
#define NUMBER(g, other) ((void)(other), *(g))
#define NUMBERS(g, other) ((void)(other), *(const VEC *)(g))
#endif
#if defined(MULTIPLY_NARROW) && !defined(REAL)
#define TIMES(a, b, other) ((other) ? (VEC)MULTIPLY_NARROW(a, b) : (VEC)((a) * (b)))
#else
#define TIMES(a, b, other) ((void)(other), (VEC)((a) * (b)))
#endif
#define ELANES (BYTES / (long)sizeof(E))
#define PANEL (3 * LANES)
#define EPANEL (3 * ELANES)
#if defined(REAL)
#define GATHER 1
#elif defined(ADD_QUADS)
#define GATHER 4
#else
#define GATHER 2
#endif

/* -- G x, G symmetric ------------------------------------------------------------------------------------------ */

/* left: G (d, d); right: x (d,); out: sums (threads, d). Entries on and above the diagonal count for two rows: row i gets
   G[i,k] x[k], and row k gets G[i,k] x[i]. Four rows are read at once, so that x and the sums are loaded once for them. */
TARGET INLINE void NAME(vector)(struct job *job, long part, int thread, int other) {
    long d = job->d, stop = LEAST(d, (part + 1) * STRIP);
    const T *x = job->right;
    T *y = (T *)job->out + thread * d;
    for (long i = part * STRIP; i < stop; i += 4) {
        const T *g = (const T *)job->left + i * d;
        long rows = LEAST(4, stop - i), from = d, to = d; /* the columns from..to are read in vectors */
        if (rows == 4) {
            from = i + 4 + (long)(-(uintptr_t)(g + i + 4) / sizeof(T) % LANES); /* where vectors are aligned */
            from = LEAST(from, d);
            to = from + (d - from) / LANES * LANES;
        }
        T own[4] = {0};
        for (long r = 0; r < rows; r++) {
            T mine = x[i + r];
            own[r] += NUMBER(g + r * d + i + r, other) * mine;
            for (int after = 0; after < 2; after++)
                for (long k = after ? to : i + r + 1; k < (after ? d : from); k++) {
                    T number = NUMBER(g + r * d + k, other);
                    own[r] += number * x[k];
                    y[k] += number * mine;
                }
        }
        if (to > from) {
            VEC x0 = x[i] - (VEC){0}, x1 = x[i + 1] - (VEC){0}, x2 = x[i + 2] - (VEC){0}, x3 = x[i + 3] - (VEC){0};
            VEC c0 = {0}, c1 = {0}, c2 = {0}, c3 = {0};
            for (long k = from; k < to; k += LANES) {
                VEC g0 = NUMBERS(g + k, other), g1 = NUMBERS(g + d + k, other), g2 = NUMBERS(g + 2 * d + k, other);
                VEC g3 = NUMBERS(g + 3 * d + k, other), w = *(const VEC *)(x + k);
                c0 += g0 * w, c1 += g1 * w, c2 += g2 * w, c3 += g3 * w;
                *(VEC *)(y + k) += (g0 * x0 + g1 * x1) + (g2 * x2 + g3 * x3);
            }
            for (long q = 0; q < LANES; q++)
                own[0] += c0[q], own[1] += c1[q], own[2] += c2[q], own[3] += c3[q];
        }
        for (long r = 0; r < rows; r++)
            y[i + r] += own[r];
    }
}

TARGET static void NAME(times_vector)(struct job *job, long part, int thread) { NAME(vector)(job, part, thread, 0); }

/* -- G B ------------------------------------------------------------------------------------------------------- */

/* tile (ROWS, PANEL) = g b over `depth` terms, for g in rows `apart` and b (depth, vectors * LANES) in rows `step` apart. */
TARGET INLINE void NAME(block)(long depth, const T *g, long apart, const T *b, long step, int vectors, int other, T *tile) {
    VEC c[ROWS][3] = {{{0}}};
    for (long k = 0; k < depth; k++, b += step)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            VEC factor = EACH(g + r * apart + k, other);
#pragma GCC unroll 3
            for (int v = 0; v < vectors; v++)
                c[r][v] += TIMES(factor, *(const VEC *)(b + v * LANES), other);
        }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            *(VEC *)(tile + r * PANEL + v * LANES) = c[r][v];
}

/* The same for 1, 2 or 3 vectors in a row. */
TARGET INLINE void NAME(blocks)(long depth, const T *g, long apart, const T *b, long step, int vectors, int other, T *tile) {
    if (vectors > 2)
        NAME(block)(depth, g, apart, b, step, 3, other, tile);
    else if (vectors > 1)
        NAME(block)(depth, g, apart, b, step, 2, other, tile);
    else
        NAME(block)(depth, g, apart, b, step, 1, other, tile);
}

/* Whether columns of B are read where they are: for few rows, packing takes longer than it saves. */
INLINE int NAME(direct)(const struct job *job, long width) { return job->d <= STRIP && width % LANES == 0; }

/* right: B (inner, n), packed in panels side by side: what `times` multiplies, in the order that it reads it. A part is DEPTH
   rows of B. */
TARGET static void NAME(panels)(struct job *job, long part, int thread) {
    long inner = job->columns, n = job->n, stop = LEAST(inner, (part + 1) * DEPTH);
    (void)thread;
    for (long j = 0; j < n; j += PANEL) {
        long width = LEAST(PANEL, n - j), padded = (width + LANES - 1) / LANES * LANES;
        if (NAME(direct)(job, width))
            continue;
        for (long k = part * DEPTH; k < stop; k++) {
            const T *from = (const T *)job->right + k * n + j;
            T *to = (T *)job->packed_right + j * inner + k * padded;
            for (long q = 0; q < width; q++)
                to[q] = from[q];
            for (long q = width; q < padded; q++)
                to[q] = 0;
        }
    }
}

/* out (d, n) = left (d, inner) times B (inner, n), for `strip` rows. The left is a matrix of T, or int8 codes, whose rows are
   `across` apart and whose columns are `along` apart. Few columns: memory sets the pace, so rows are read where they are, along
   their whole length. More: parts of rows are used again and again, and copied to where they are not a power of two apart,
   because such addresses share few places in a cache. */
TARGET INLINE void NAME(times)(struct job *job, long part, const T *G, const int8_t *codes, int other) {
    enum { GROUP = 16 * PANEL, AWAY = DEPTH + LANES }; /* GROUP: columns at a time: what is packed of them stays in the cache */
    long inner = job->columns, n = job->n, start = part * job->strip, stop = LEAST(job->d, start + job->strip);
    long across = job->across, along = job->along;
    int there = n <= PANEL && G && along == 1;
    long deep = there ? 16 * DEPTH : DEPTH;
    T *out = job->out, rows[ROWS * AWAY] = {0}, tile[ROWS * PANEL];
    for (long j0 = 0; j0 < n; j0 += GROUP)
        for (long k0 = 0; k0 < inner; k0 += deep) {
            long depth = LEAST(deep, inner - k0), last = LEAST(n, j0 + GROUP);
            for (long i = start, count; i < stop; i += count) {
                const T *left = there ? G + i * across + k0 : rows;
                long apart = there ? across : AWAY;
                count = LEAST(ROWS, stop - i);
                if (there && count < ROWS)
                    count = 1, apart = 0; /* one row, and the same for nobody: beyond the last there may be no memory */
                if (!there && G && along == 1) {
                    for (long r = 0; r < count; r++) {
                        for (long k = 0; k < depth; k++)
                            rows[r * AWAY + k] = NUMBER(G + (i + r) * across + k0 + k, other);
                        for (long k = k0; i + ROWS + r < stop && k < k0 + depth; k += 64 / sizeof(T))
                            __builtin_prefetch(G + (i + ROWS + r) * across + k); /* of the next rows */
                    }
                } else if (!there) {
                    for (long k = 0; k < depth; k++)
                        for (long r = 0; r < count; r++) {
                            long place = (i + r) * across + (k0 + k) * along;
                            rows[r * AWAY + k] = G ? NUMBER(G + place, other) : (T)codes[place];
                        }
                }
                for (long j = j0; j < last; j += PANEL) {
                    long width = LEAST(PANEL, n - j), step = (width + LANES - 1) / LANES * LANES;
                    const T *panel = (const T *)job->packed_right + j * inner + k0 * step;
                    if (NAME(direct)(job, width))
                        step = n, panel = (const T *)job->right + k0 * n + j;
                    int vectors = (int)((width + LANES - 1) / LANES);
                    if (there)
                        NAME(blocks)(depth, left, apart, panel, step, vectors, other, tile);
                    else
                        NAME(blocks)(depth, left, apart, panel, step, vectors, COPIED(other), tile);
                    for (long r = 0; r < count; r++)
                        for (long q = 0; q < width; q++)
                            out[(i + r) * n + j + q] = tile[r * PANEL + q] + (k0 ? out[(i + r) * n + j + q] : 0);
                }
            }
        }
}

/* left: G (d, d); right: B (d, n); out (d, n). */
TARGET static void NAME(times_block)(struct job *job, long part, int thread) {
    (void)thread;
    NAME(times)(job, part, job->left, NULL, 0);
}

/* The same for matrices of the other kind. */
TARGET static void NAME(other_block)(struct job *job, long part, int thread) {
    (void)thread;
    NAME(times)(job, part, job->left, NULL, 1);
}

#ifdef REAL
TARGET static void NAME(other_vector)(struct job *job, long part, int thread) { NAME(vector)(job, part, thread, 1); }

/* left: G (d, d), integers; out: the sums of the magnitudes, of the numbers and of the squares of each row (3, d). */
TARGET static void NAME(moments)(struct job *job, long part, int thread) {
    long d = job->d, stop = LEAST(d, (part + 1) * STRIP);
    double *out = job->out;
    (void)thread;
    for (long i = part * STRIP; i < stop; i++) {
        const int64_t *g = (const int64_t *)job->left + i * d;
        VEC sizes = {0}, sums = {0}, squares = {0};
        double size = 0, sum = 0, square = 0;
        long k = 0;
        for (; k + LANES <= d; k += LANES) {
            VEC number = __builtin_convertvector(*(const NAME(ivec) *)(g + k), VEC);
            sums += number, squares += number * number;
            sizes += (VEC)((NAME(ivec))number & INT64_MAX); /* without its sign */
        }
        for (; k < d; k++)
            size += fabs((double)g[k]), sum += (double)g[k], square += (double)g[k] * (double)g[k];
        for (long q = 0; q < LANES; q++)
            size += sizes[q], sum += sums[q], square += squares[q];
        out[i] = size, out[d + i] = sum, out[2 * d + i] = square;
    }
}
#endif

#ifndef REAL
/* left: int8 codes; right: B (inner, n); out (d, n). */
TARGET static void NAME(times_codes)(struct job *job, long part, int thread) {
    (void)thread;
    NAME(times)(job, part, NULL, job->left, 0);
}

/* sums (n,) += the next four codes of a row that are not 0, times the rows of B (inner, n) at their places. Returns the place after
   them. `restrict` counts only for arguments: these loops become vectors because they are functions of their own. */
#define FOUR(NAMED, B_TYPE, SUM) \
    TARGET static long NAMED(const int8_t *codes, long k, long inner, long n, const B_TYPE *B, SUM *restrict sums) { \
        const B_TYPE *b[4] = {B, B, B, B}; \
        SUM f[4] = {0}; \
        for (int found = 0; k < inner && found < 4; k++) { \
            b[found] = B + k * n, f[found] = codes[k]; /* one that is 0 is replaced by the next */ \
            found += codes[k] != 0; \
        } \
        const B_TYPE *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3]; \
        SUM f0 = f[0], f1 = f[1], f2 = f[2], f3 = f[3]; \
        for (long j = 0; j < n; j++) \
            sums[j] += (b0[j] * f0 + b1[j] * f1) + (b2[j] * f2 + b3[j] * f3); \
        return k; \
    }
FOUR(NAME(four_bytes), int8_t, int32_t)
FOUR(NAME(four_halves), int32_t, int64_t)
FOUR(NAME(four_wholes), int64_t, int64_t)
#undef FOUR

/* left: int8 codes (d, inner), few rows; right: B (inner, n); out (d, n), zeros before. A part is a row. Memory sets the pace, so B
   is read once, where it is. `strip` is the size of its numbers: sums of int8 are int32, others int64. */
TARGET static void NAME(few)(struct job *job, long part, int thread) {
    long inner = job->columns, n = job->n;
    const int8_t *codes = (const int8_t *)job->left + part * inner;
    (void)thread;
    for (long k = 0; k < inner;)
        if (job->strip == 1)
            k = NAME(four_bytes)(codes, k, inner, n, job->right, (int32_t *)job->out + part * n);
        else if (job->strip == 4)
            k = NAME(four_halves)(codes, k, inner, n, job->right, (int64_t *)job->out + part * n);
        else
            k = NAME(four_wholes)(codes, k, inner, n, job->right, (int64_t *)job->out + part * n);
}

/* The same for a B of +1 and -1: a bit for each, 1 for +1, in rows of n bits; n is a multiple of 256. The codes at a 1 are summed, in
   16 bits: 256 codes of at most 127 fit. Twice that, less all codes, is the product. */
typedef int16_t NAME(hvec) __attribute__((vector_size(BYTES), aligned(2), may_alias));
TARGET INLINE NAME(hvec) NAME(chosen)(NAME(hvec) c, const uint8_t *bits, NAME(hvec) code) {
#if defined(ADD_CHOSEN)
    return ADD_CHOSEN(c, bits, code);
#else
    NAME(hvec) places = {0};
    for (int q = 0; q < BYTES / 2; q++)
        places[q] = (int16_t)(1 << q);
    int16_t word = (int16_t)(BYTES == 16 ? bits[0] : bits[0] | bits[1] << 8);
    return c + (((NAME(hvec))(word - (NAME(hvec)){0}) & places) != 0 & code);
#endif
}
TARGET static void NAME(few_signs)(struct job *job, long part, int thread) {
    enum { WIDE = BYTES / 2 }; /* columns of a vector; eight vectors at a time */
    long inner = job->columns, n = job->n;
    const int8_t *codes = (const int8_t *)job->left + part * inner;
    int32_t *sums = (int32_t *)job->out + part * n, all = 0;
    (void)thread;
    for (long k = 0; k < inner; k++)
        all += codes[k];
    for (long j = 0; j < n; j += 8 * WIDE)
        for (long k0 = 0; k0 < inner; k0 += 256) {
            NAME(hvec) c[8] = {{0}};
            for (long k = k0; k < LEAST(inner, k0 + 256); k++) {
                const uint8_t *bits = (const uint8_t *)job->right + (k * n + j) / 8;
                NAME(hvec) code = (int16_t)codes[k] - (NAME(hvec)){0};
#pragma GCC unroll 8
                for (int v = 0; v < 8; v++)
                    c[v] = NAME(chosen)(c[v], bits + v * WIDE / 8, code);
            }
            for (int v = 0; v < 8; v++)
                for (int q = 0; q < WIDE; q++)
                    sums[j + v * WIDE + q] += 2 * c[v][q] - (k0 ? 0 : all);
        }
}
#endif

#include "kernels_updates.h"

#undef VEC
#undef EVEC
#undef LANES
#undef NUMBER
#undef EACH
#undef INTEGER
#undef COPIED
#undef NUMBERS
#undef TIMES
#undef ELANES
#undef PANEL
#undef EPANEL
#undef GATHER
#undef KIND
#undef T
#undef E
#endif
