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
