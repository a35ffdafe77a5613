/* The part of kernels_tiles.h that changes matrices: sums and inverses that are updated, solutions that are moved. */

/* -- updates of a symmetric matrix --------------------------------------------------------------------------------- */

/* Numbers of E that a column of a panel has: a start, which sums begin with, and the terms. */
INLINE long NAME(length)(long n) { return 1 + (n + GATHER - 1) / GATHER; }

#ifndef REAL
/* Codes of `terms` terms and `width` columns, at q across + k along, as a panel of a left or of a right side. GATHER terms are one
   number. Four signed codes are multiplied by four unsigned ones: MORE is added on the right, and what this adds to a product is
   taken off its start, which is on the left. The caller has set the panel to zeros. */
TARGET INLINE void NAME(gather)(const int8_t *codes, long width, long terms, long across, long along, const int8_t *signs,
                                E *left, E *right) {
    enum { BITS = 32 / GATHER, MORE = GATHER == 4 ? 128 : 0 };
    for (long term = 0; term < terms; term++) {
        long k = (1 + term / GATHER) * EPANEL, place = term % GATHER * BITS;
        int sign = signs ? signs[term] : 1;
        for (long q = 0; q < width; q++) {
            int code = codes[q * across + term * along];
            if (left) {
                left[k + q] |= (int32_t)((uint32_t)(code * sign) << (32 - BITS) >> (32 - BITS - place));
                left[q] -= MORE * sign * code;
            } else
                right[k + q] |= (int32_t)((uint32_t)(code + MORE) << (32 - BITS) >> (32 - BITS - place));
        }
    }
}

/* left: codes (d, inner); right: codes (inner, n). A part is a panel of one or of the other. */
TARGET static void NAME(pack_codes)(struct job *job, long part, int thread) {
    long d = job->d, n = job->n, inner = job->columns, length = NAME(length)(inner), rows = (d + EPANEL - 1) / EPANEL;
    long first = EPANEL * (part < rows ? part : part - rows);
    E *to = (E *)(part < rows ? job->packed_left : job->packed_right) + first * length;
    (void)thread;
    memset(to, 0, length * EPANEL * sizeof(E));
    if (part < rows)
        NAME(gather)((const int8_t *)job->left + first * inner, LEAST(EPANEL, d - first), inner, inner, 1, NULL, to, NULL);
    else
        NAME(gather)((const int8_t *)job->right + first, LEAST(EPANEL, n - first), inner, 1, n, NULL, NULL, to);
}
#endif

/* The columns of a panel side by side, one term after the other: what `update` multiplies, in the order that it reads it. */
TARGET static void NAME(pack)(struct job *job, long part, int thread) {
    long d = job->d, n = job->n, j0 = part * EPANEL, width = LEAST(EPANEL, d - j0), length = NAME(length)(n);
    E *left = (E *)job->packed_left + j0 * length, *right = (E *)job->packed_right + j0 * length;
    (void)thread;
    memset(left, 0, length * EPANEL * sizeof(E)), memset(right, 0, length * EPANEL * sizeof(E));
#ifdef REAL /* left, right: (n, d); the left counts `shift` times */
    for (long k = 0; k < n; k++)
        for (long q = 0; q < width; q++) {
            left[(k + 1) * EPANEL + q] = ((const double *)job->left)[k * d + j0 + q] * job->shift;
            right[(k + 1) * EPANEL + q] = ((const double *)job->right)[k * d + j0 + q];
        }
#else /* left: codes (n, d); right: signs (n,). The codes of GATHER samples are one number, on the left with signs. */
    NAME(gather)((const int8_t *)job->left + j0, width, n, 1, d, job->right, left, NULL);
    NAME(gather)((const int8_t *)job->left + j0, width, n, 1, d, NULL, NULL, right);
#endif
}

/* c and what the products of a with each lane of b add. */
TARGET INLINE EVEC NAME(plus)(EVEC c, E a, EVEC b) {
#if defined(REAL)
    return c + a * b;
#elif defined(ADD_QUADS)
    return ADD_QUADS(c, a - (EVEC){0}, b);
#elif defined(MULTIPLY_PAIRS)
    return c + MULTIPLY_PAIRS(a - (EVEC){0}, b);
#else
    return c + (int16_t)a * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* tile (ROWS, EPANEL): the products of ROWS columns of a panel and all of another. */
TARGET INLINE void NAME(multiply)(long length, const E *a, const E *b, E *tile) {
    EVEC c[ROWS][3];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < 3; v++)
            c[r][v] = a[r] - (EVEC){0};
    for (long k = 1; k < length; k++) {
        a += EPANEL, b += EPANEL;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
            for (int v = 0; v < 3; v++)
                c[r][v] = NAME(plus)(c[r][v], a[r], *(const EVEC *)(b + v * ELANES));
    }
    memcpy(tile, c, sizeof c);
}

/* Add the first `high` rows of a tile to the matrix at row i and column j; its numbers are T, or int32 if it is `half` as wide. */
TARGET INLINE void NAME(add)(void *G, int half, long d, long i, long j, long high, const E *tile) {
    long wide = LEAST(EPANEL, d - j);
    for (long r = 0; r < LEAST(high, d - i); r++) {
        T *to = (T *)G + (i + r) * d + j;
        int32_t *to_half = (int32_t *)G + (i + r) * d + j;
        if (half)
            for (long q = 0; q < wide; q++)
                to_half[q] += (int32_t)tile[r * EPANEL + q];
        else if (wide == EPANEL)
            for (long q = 0; q < EPANEL; q++)
                to[q] += (T)tile[r * EPANEL + q];
        else
            for (long q = 0; q < wide; q++)
                to[q] += (T)tile[r * EPANEL + q];
    }
}

/* Ask for the part of the matrix that a tile is added to, before it is needed. */
TARGET INLINE void NAME(ask)(const char *G, long size, long d, long i0, long j0) {
    for (long r = i0; r < LEAST(d, i0 + EPANEL); r++)
        for (long q = j0; q < LEAST(d, j0 + EPANEL); q += 64 / size)
            __builtin_prefetch(G + (r * d + q) * size, 1, 2);
}

/* out: G (d, d). A part is a panel of rows. For few terms memory sets the pace: whole rows are changed. Below the diagonal the
   factors change places, so that in float64 both triangles have the same bits. For more terms only tiles on and above the
   diagonal are computed, and turned to be added below. */
TARGET INLINE void NAME(updated)(struct job *job, long part, int half) {
    long d = job->d, i0 = part * EPANEL, length = NAME(length)(job->n);
    const E *left = job->packed_left, *right = job->packed_right;
    void *G = job->out;
    E tile[EPANEL * EPANEL], turned[EPANEL * EPANEL];
    if (length <= 2 * ELANES) {
        for (long i = 0; i < EPANEL; i += ROWS)
            for (long j0 = 0; j0 < d; j0 += EPANEL) {
                int change = GATHER == 1 && j0 < i0;
                NAME(multiply)(length, (change ? right : left) + i0 * length + i, (change ? left : right) + j0 * length, tile);
                if (GATHER == 1 && j0 == i0) {
                    NAME(multiply)(length, right + i0 * length + i, left + j0 * length, turned);
                    for (long r = 0; r < ROWS; r++)
                        memcpy(tile + r * EPANEL, turned + r * EPANEL, (i + r) * sizeof(E));
                }
                NAME(add)(G, half, d, i0 + i, j0, ROWS, tile);
            }
        return;
    }
    for (long j0 = i0; j0 < d; j0 += EPANEL) {
        NAME(ask)(G, half ? sizeof(int32_t) : sizeof(T), d, i0, j0 + EPANEL);
        NAME(ask)(G, half ? sizeof(int32_t) : sizeof(T), d, j0 + EPANEL, i0);
        for (long r = 0; r < EPANEL; r += ROWS)
            NAME(multiply)(length, left + i0 * length + r, right + j0 * length, tile + r * EPANEL);
        for (long r = 0; r < EPANEL; r++) /* in this order the compiler makes better code */
            for (long q = 0; q < EPANEL; q++)
                turned[q * EPANEL + r] = tile[r * EPANEL + q];
        if (j0 > i0)
            NAME(add)(G, half, d, j0, i0, EPANEL, turned);
        else
            for (long r = 0; r < EPANEL; r++)
                memcpy(tile + r * EPANEL, turned + r * EPANEL, r * sizeof(E));
        NAME(add)(G, half, d, i0, j0, EPANEL, tile);
    }
}

TARGET static void NAME(update)(struct job *job, long part, int thread) {
    (void)thread;
    NAME(updated)(job, part, 0);
}

#ifndef REAL
TARGET static void NAME(update_half)(struct job *job, long part, int thread) {
    (void)thread;
    NAME(updated)(job, part, 1);
}
#endif

#ifndef REAL
/* out (d, n), int32: the product of packed codes. A part is `strip` panels of rows: what is packed of them stays in the cache. */
TARGET static void NAME(cross)(struct job *job, long part, int thread) {
    long d = job->d, n = job->n, length = NAME(length)(job->columns), start = part * job->strip * EPANEL;
    const E *left = job->packed_left, *right = job->packed_right;
    E tile[ROWS * EPANEL], *out = job->out;
    (void)thread;
    for (long j = 0; j < n; j += EPANEL)
        for (long i0 = start; i0 < LEAST(d, start + job->strip * EPANEL); i0 += EPANEL)
            for (long i = i0; i < LEAST(d, i0 + EPANEL); i += ROWS) {
                NAME(multiply)(length, left + i0 * length + (i - i0), right + j * length, tile);
                for (long r = 0; r < LEAST(ROWS, d - i); r++)
                    memcpy(out + (i + r) * n + j, tile + r * EPANEL, LEAST(EPANEL, n - j) * sizeof(E));
            }
}
#endif

/* -- moving an approximate solution --------------------------------------------------------------------------------- */

#ifdef REAL
/* For each entry: p = sum of u1 e1 and q = sum of u1 e2 + u2 e1, which the caller has bounded so that they are exact; and
   r = sum of u1 e3 + u2 (e2 + e3) + u3 (e1 + e2 + e3), rounded. steps and rests take p + q + r: whole numbers go to steps, and what
   is left, at most a half, to rests. Entries whose rest is nearer to a half than `doubt` of their column, or NaN, are noted in
   `near` and counted. */
TARGET static void NAME(move)(struct job *job, long part, int thread) {
    enum { WIDE = 2 * LANES, HIGH = 2, BLOCK = STRIP * WIDE }; /* entries whose sums are kept in registers */
    long d = job->d, n = job->n, columns = job->columns, start = part * STRIP, stop = LEAST(d, start + STRIP);
    const double *u1 = job->lefts[0], *u2 = job->lefts[1], *u3 = job->lefts[2], *doubt = job->doubt;
    const double *e1 = job->rights[0], *e2 = job->rights[1], *e3 = job->rights[2];
    double e[5][DEPTH * WIDE], sums[3 * BLOCK]; /* e1, e2, e3, e2 + e3, all three; p, q, r */
    (void)thread;
    for (long j0 = 0; j0 < columns; j0 += WIDE) {
        long width = LEAST(WIDE, columns - j0);
        memset(sums, 0, sizeof sums);
        for (long k0 = 0; k0 < n; k0 += DEPTH) {
            long depth = LEAST(DEPTH, n - k0);
            for (long k = 0; k < depth; k++)
                for (long j = 0; j < WIDE; j++) {
                    long place = (k0 + k) * columns + j0 + j, here = k * WIDE + j;
                    e[0][here] = j < width ? e1[place] : 0;
                    e[1][here] = j < width ? e2[place] : 0;
                    e[2][here] = j < width ? e3[place] : 0;
                    e[3][here] = e[1][here] + e[2][here];
                    e[4][here] = e[0][here] + e[3][here];
                }
            for (long i = start; i < stop; i += HIGH) {
                VEC P[HIGH][2] = {{{0}}}, Q[HIGH][2] = {{{0}}}, R[HIGH][2] = {{{0}}};
                for (long k = 0; k < depth; k++)
#pragma GCC unroll 2
                    for (int r = 0; r < HIGH; r++) {
                        long place = LEAST(i + r, stop - 1) * n + k0 + k; /* below the last row: it again, for nobody */
                        double a = u1[place], b = u2[place], c = u3[place];
#pragma GCC unroll 2
                        for (int v = 0; v < 2; v++) {
                            long lane = k * WIDE + v * LANES;
                            P[r][v] += a * *(const VEC *)(e[0] + lane);
                            Q[r][v] += a * *(const VEC *)(e[1] + lane);
                            Q[r][v] += b * *(const VEC *)(e[0] + lane);
                            R[r][v] += a * *(const VEC *)(e[2] + lane);
                            R[r][v] += b * *(const VEC *)(e[3] + lane);
                            R[r][v] += c * *(const VEC *)(e[4] + lane);
                        }
                    }
                for (int r = 0; r < HIGH; r++)
                    for (int v = 0; v < 2; v++) {
                        double *place = sums + (i - start + r) * WIDE + v * LANES;
                        *(VEC *)place += P[r][v];
                        *(VEC *)(place + BLOCK) += Q[r][v];
                        *(VEC *)(place + 2 * BLOCK) += R[r][v];
                    }
            }
        }
        for (long i = start; i < stop; i++) {
            int64_t *steps = (int64_t *)job->out + i * columns + j0;
            double *rests = (double *)job->rests + i * columns + j0, *sum = sums + (i - start) * WIDE;
            int any = 0;
            for (long j = 0; j < width; j++) {
                double p = sum[j], q = sum[j + BLOCK], r = sum[j + 2 * BLOCK], w = rint(p), v = rint(q), u = rint(r);
                double rest = ((rests[j] + (p - w)) + (q - v)) + (r - u), carry = rint(rest);
                rests[j] = rest -= carry;
                steps[j] += (int64_t)w + (int64_t)v + (int64_t)u + (int64_t)carry;
                any |= !(0.5 - fabs(rest) > doubt[j0 + j]);
            }
            for (long j = 0; any && j < width; j++)
                if (!(0.5 - fabs(rests[j]) > doubt[j0 + j])) {
                    long place = __atomic_fetch_add(&job->near_count, 1, __ATOMIC_RELAXED);
                    if (place < job->near_size)
                        job->near[place] = i * columns + j0 + j;
                }
        }
    }
}
#endif
