/* Products and updates that the engine repeats for every request, for 64-bit integers and float64.

   Integers are computed modulo 2^64, in any order, so their results are the same on every machine. Results in float64
   are as accurate as a sum of products is; their last bits depend on the machine and on the threads.

   Matrices are stored row by row without gaps. The caller (kernels.py) checks types and shapes: nothing is checked here.
   No function allocates memory, and nothing is kept between calls but a team of threads. The loops are in kernels_tiles.h
   and kernels_updates.h, which are compiled once for each instruction set and kind of number. Each call chooses the best
   that the processor has. */

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
enum { MAX_THREADS = 64, STRIP = 64, DEPTH = 128 }; /* STRIP: rows that a thread takes at a time; DEPTH: terms that are summed
   at a time: what is packed of them stays in the cache, and on the stack */

/* -- sharing the work ------------------------------------------------------------------------------------------ */

/* What a kernel works on. Which fields it uses, and as what, is said where it is defined. */
struct job {
    void (*part)(struct job *, long part, int thread);
    long parts, next; /* how many there are; the next that nobody has taken yet */
    long threads;
    long d, n, columns;
    long strip, across, along;
    const void *left, *right, *lefts[3], *rights[3], *doubt;
    void *out, *rests, *packed_left, *packed_right;
    double shift;
    int64_t *near;
    long near_size, near_count;
};

struct worker {
    struct job *job;
    int thread;
};

/* Take parts until none is left. Parts of a triangle differ in size: who is done early takes more. */
static void *work(void *argument) {
    struct worker *worker = argument;
    struct job *job = worker->job;
    long part;
    while ((part = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED)) < job->parts)
        job->part(job, part, worker->thread);
    return NULL;
}

/* A team: threads that wait for work, so that it starts at once. Starting a thread takes as long as a small product. It works
   for the thread that gathered it; other threads, and forked processes, start threads of their own meanwhile. */
enum { CLOSED, OPEN, HOME }; /* nothing to do; there is a job; go home */
static struct {
    long process;             /* whose team it is, or 0 */
    long turn, state, inside; /* raised for each job; CLOSED, OPEN or HOME; threads that may be working on the job */
    long count;
    struct job *job; /* if OPEN */
    pthread_t threads[MAX_THREADS];
} team;
static __thread int gathered; /* whether the team works for this thread */

/* Wait until a number that another thread changes is, or is no longer, what is given. Others may use the processor meanwhile.
   After some milliseconds it sleeps in between: a long pause, or a team that nobody dismisses, must not take a processor. */
INLINE long await(const long *number, long given, int is) {
    for (long spins = 0;; spins++) {
        long now = __atomic_load_n(number, __ATOMIC_ACQUIRE);
        if ((now == given) == is)
            return now;
        if (spins > 30000)
            nanosleep(&(struct timespec){0, 500000}, NULL);
        else if (spins > 1000)
            sched_yield();
#if defined(__x86_64__)
        else
            _mm_pause();
#endif
    }
}

/* A thread first says that it is inside, and then looks whether the job is open. Who ends a job first closes it, and then waits
   until nobody is inside. So a thread that comes too late is not waited for: on a busy machine it may come at any time. */
static void *serve(void *argument) {
    struct worker worker = {NULL, 1 + (int)((pthread_t *)argument - team.threads)};
    for (long turn = 0, state = CLOSED; state != HOME;) {
        turn = await(&team.turn, turn, 0);
        __atomic_fetch_add(&team.inside, 1, __ATOMIC_SEQ_CST);
        state = __atomic_load_n(&team.state, __ATOMIC_SEQ_CST);
        if (state == OPEN && worker.thread < team.job->threads) {
            worker.job = team.job;
            work(&worker);
        }
        __atomic_fetch_sub(&team.inside, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* Let the team see that there is something new. */
static void tell(long state) {
    __atomic_store_n(&team.state, state, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&team.turn, 1, __ATOMIC_RELEASE);
}

/* Do all parts, in this thread and in others, which are done with them when this returns. */
static void run(struct job *job, void (*part)(struct job *, long, int), long parts) {
    struct worker workers[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    long count = LEAST(LEAST(job->threads, MAX_THREADS), parts), started = 1;
    int together = gathered && count > 1 && __atomic_load_n(&team.process, __ATOMIC_RELAXED) == getpid();
    job->part = part, job->parts = parts, job->next = 0;
    if (together) {
        team.job = job;
        tell(OPEN);
    } else
        for (; started < count; started++) { /* if one cannot be created, the others do its work */
            workers[started] = (struct worker){job, (int)started};
            if (pthread_create(&threads[started], NULL, work, &workers[started]) != 0)
                break;
        }
    workers[0] = (struct worker){job, 0};
    work(&workers[0]);
    if (together) {
        __atomic_store_n(&team.state, CLOSED, __ATOMIC_SEQ_CST);
        await(&team.inside, 0, 1);
    }
    for (long t = 1; t < started; t++)
        pthread_join(threads[t], NULL);
}

/* -- the loops, for each instruction set ------------------------------------------------------------------------- */

#define JOINED(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOINED(a, b, c)
#define NAME(x) JOIN(x, KIND, SET)

/* ROWS times three vectors of sums, three more and a factor fit into the registers. */
#if defined(__x86_64__)
#define SET vnni
#define ADD_CHOSEN(c, bits, code) \
    (NAME(hvec))_mm512_mask_add_epi16((__m512i)(c), *(const uint32_t *)(const void *)(bits), (__m512i)(c), (__m512i)(code))
#define BYTES 64
#define ROWS 8
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,avx2,fma")))
#define ADD_QUADS(c, a, b) (NAME(evec))_mm512_dpbusd_epi32((__m512i)(c), (__m512i)(b), (__m512i)(a))
#define MULTIPLY_NARROW(a, b) (NAME(vec))_mm512_mul_epi32((__m512i)(a), (__m512i)(b))
#include "kernels_tiles.h"
#define SET avx512
#define ADD_CHOSEN(c, bits, code) \
    (NAME(hvec))_mm512_mask_add_epi16((__m512i)(c), *(const uint32_t *)(const void *)(bits), (__m512i)(c), (__m512i)(code))
#define BYTES 64
#define ROWS 8
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#define MULTIPLY_PAIRS(a, b) (NAME(evec))_mm512_madd_epi16((__m512i)(a), (__m512i)(b))
#define MULTIPLY_NARROW(a, b) (NAME(vec))_mm512_mul_epi32((__m512i)(a), (__m512i)(b))
#include "kernels_tiles.h"
#define SET avx2
#define BYTES 32
#define ROWS 4
#define TARGET __attribute__((target("avx2,fma")))
#define MULTIPLY_PAIRS(a, b) (NAME(evec))_mm256_madd_epi16((__m256i)(a), (__m256i)(b))
#define MULTIPLY_NARROW(a, b) (NAME(vec))_mm256_mul_epi32((__m256i)(a), (__m256i)(b))
#include "kernels_tiles.h"
#endif
#define SET plain
#define BYTES 16
#define ROWS 3
#define TARGET
#if defined(__x86_64__)
#define MULTIPLY_PAIRS(a, b) (NAME(evec))_mm_madd_epi16((__m128i)(a), (__m128i)(b))
#endif
#include "kernels_tiles.h"

/* -- what is called from outside --------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define CHOOSE(kernel, level) \
    ((level) >= 3 ? kernel##_vnni : (level) == 2 ? kernel##_avx512 : (level) == 1 ? kernel##_avx2 : kernel##_plain)
#else
#define CHOOSE(kernel, level) kernel##_plain
#endif

#ifndef NS_VERSION
#define NS_VERSION 0
#endif

/* Of the source that this was compiled from. */
long ns_version(void) { return NS_VERSION; }

/* The instruction set to use: 3 is AVX-512 with VNNI, 2 is AVX-512, 1 is AVX2, 0 any. */
long ns_level(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return __builtin_cpu_supports("avx512vnni") ? 3 : 2;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
#else
    return 0;
#endif
}

/* The columns of a panel that is packed: the caller gives room for whole ones. `real`: as wide as float64. */
long ns_panel(long level, long real) { return 3 * (level >= 2 ? 64 : level == 1 ? 32 : 16) / (real ? 8 : 4); }

/* Gather a team of so many threads, the caller included, for what this thread does until ns_dismiss. Returns how many there are:
   1 if another thread has the team. One of the process that this was forked from is not here, and nobody's. */
long ns_gather(long threads) {
    long here = getpid(), whose = __atomic_load_n(&team.process, __ATOMIC_RELAXED);
    if (threads < 2 || whose == here ||
        !__atomic_compare_exchange_n(&team.process, &whose, here, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return 1;
    team.turn = team.state = team.inside = team.count = 0;
    for (; team.count < LEAST(threads, MAX_THREADS) - 1; team.count++)
        if (pthread_create(&team.threads[team.count], NULL, serve, &team.threads[team.count]) != 0)
            break;
    gathered = 1;
    return team.count + 1;
}

/* Let the team of this thread go home, if it has one. */
void ns_dismiss(void) {
    if (!gathered)
        return;
    gathered = 0;
    if (__atomic_load_n(&team.process, __ATOMIC_RELAXED) != getpid())
        return; /* a forked process: it has no such threads */
    tell(HOME);
    for (long t = 0; t < team.count; t++)
        pthread_join(team.threads[t], NULL);
    __atomic_store_n(&team.process, 0, __ATOMIC_RELEASE);
}

/* What is multiplied: 64-bit integers; float64; a matrix of 64-bit integers by float64; integers of 32 bits, in 64; int8 codes
   by 64-bit integers. */
enum { WHOLE, REAL_NUMBERS, MIXED, NARROW, CODES };

/* sums (threads, d), zeros before: their sum over the threads is G x. One triangle of the symmetric G is read. */
void ns_times_vector(long level, long kind, long threads, long d, const void *G, const void *x, void *sums) {
    struct job job = {.threads = threads, .d = d, .left = G, .right = x, .out = sums};
    void (*part)(struct job *, long, int) = CHOOSE(times_vector_whole, level); /* also if NARROW: it waits for memory */
    if (kind == REAL_NUMBERS)
        part = CHOOSE(times_vector_real, level);
    else if (kind == MIXED)
        part = CHOOSE(other_vector_real, level);
    run(&job, part, (d + STRIP - 1) / STRIP);
}

/* Pack B, and multiply by it. */
static void times(struct job *job, void (*pack)(struct job *, long, int), void (*part)(struct job *, long, int)) {
    run(job, pack, (job->columns + DEPTH - 1) / DEPTH);
    run(job, part, (job->d + job->strip - 1) / job->strip);
}

/* out (m, n) = left (m, inner) times B (inner, n), for numbers of the left that stand at i across + k along. The packed array
   has room for B with its columns filled up to whole vectors. */
void ns_times(long level, long kind, long threads, long m, long inner, long n, long across, long along, const void *left,
              const void *B, void *packed, void *out) {
    struct job job = {.threads = threads, .d = m, .n = n, .columns = inner, .left = left, .right = B, .out = out};
    job.packed_right = packed, job.strip = m <= STRIP ? 8 : m < 4 * STRIP ? 16 : STRIP, job.across = across, job.along = along;
    void (*part)(struct job *, long, int) = CHOOSE(times_block_whole, level);
    if (kind == REAL_NUMBERS)
        part = CHOOSE(times_block_real, level);
    else if (kind == MIXED)
        part = CHOOSE(other_block_real, level);
    else if (kind == NARROW)
        part = CHOOSE(other_block_whole, level);
    else if (kind == CODES)
        part = CHOOSE(times_codes_whole, level);
    times(&job, kind == REAL_NUMBERS || kind == MIXED ? CHOOSE(panels_real, level) : CHOOSE(panels_whole, level), part);
}

/* out (3, d): the sums of the magnitudes, of the numbers and of the squares of each row of G (d, d), as float64. */
void ns_moments(long level, long threads, long d, const int64_t *G, double *out) {
    struct job job = {.threads = threads, .d = d, .left = G, .out = out};
    run(&job, CHOOSE(moments_real, level), (d + STRIP - 1) / STRIP);
}

/* What is updated: a matrix of 64-bit integers, of float64, of 32-bit integers. */
enum { ADD_TO_WHOLE, ADD_TO_REAL, ADD_TO_HALF };

/* G (d, d) += codes' diag(signs) codes for int8 codes (n, d) and signs of -1, 0 and 1; or T (d, d) += times L'R for float64 L and
   R (n, d). One triangle is computed, and added to both. The sums of products of codes are kept in int32: n must be at most
   100,000, and no code -128. Each of the packed arrays has room for n + 1 numbers (codes: n / 2 + 1, rounded up) for each column
   of the panels. */
void ns_update(long level, long kind, long threads, long d, long n, const void *left, const void *right, double times,
               void *packed_left, void *packed_right, void *out) {
    struct job job = {.threads = threads, .d = d, .n = n, .left = left, .right = right, .shift = times, .out = out};
    int real = kind == ADD_TO_REAL;
    long panel = ns_panel(level, real), panels = (d + panel - 1) / panel;
    job.packed_left = packed_left, job.packed_right = packed_right;
    run(&job, real ? CHOOSE(pack_real, level) : CHOOSE(pack_whole, level), panels);
    void (*part)(struct job *, long, int) = real ? CHOOSE(update_real, level) : CHOOSE(update_whole, level);
    run(&job, kind == ADD_TO_HALF ? CHOOSE(update_half_whole, level) : part, panels);
}

/* out (m, n), int32 = left (m, inner) times right (inner, n), int8. The caller bounds the sums by 32 bits; what the sums pass
   through on the way may wrap. Each of the packed arrays has room as for `ns_update`, for the rows of the left and the columns of
   the right. */
void ns_times_codes(long level, long threads, long m, long inner, long n, const void *left, const void *right, void *packed_left,
                    void *packed_right, void *out) {
    struct job job = {.threads = threads, .d = m, .n = n, .columns = inner, .left = left, .right = right, .out = out};
    long panel = ns_panel(level, 0), rows = (m + panel - 1) / panel;
    job.packed_left = packed_left, job.packed_right = packed_right, job.strip = 4;
    run(&job, CHOOSE(pack_codes_whole, level), rows + (n + panel - 1) / panel);
    run(&job, CHOOSE(cross_whole, level), (rows + job.strip - 1) / job.strip);
}

/* out (m, n), 0 before = int8 left (m, inner) times right (inner, n), for few rows. `size` is that of the numbers on the right: 1
   (out is int32), 4 or 8 (int64, modulo 2^64) bytes; or 0 for bits that are signs, with n a multiple of 256. */
void ns_few(long level, long size, long m, long inner, long n, const void *left, const void *right, void *out) {
    struct job job = {.threads = 1, .d = m, .n = n, .columns = inner, .left = left, .right = right, .out = out, .strip = size};
    run(&job, size ? CHOOSE(few_whole, level) : CHOOSE(few_signs_whole, level), m);
}

/* codes (m, width) of features, float64 or float32 (`size` is 8 or 4), as `neverseen.encoding.quantise` says: a row is divided by
   its root mean square, times 16, and rounded. Each step is one IEEE operation: a product and a sum must not become one. `room` is for
   two rows of `padded` numbers, the power of 2 from `width` on. Returns 0 if a feature is not finite. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
__attribute__((optimize("fp-contract=off")))
#endif
long ns_quantise(long m, long width, long padded, long size, const void *features, double *room, int8_t *codes) {
    double *row = room, *squares = room + padded;
    for (long i = 0; i < m; i++) {
        double most = 0;
        int exponent;
        for (long k = 0; k < width; k++) {
            row[k] = size == 4 ? ((const float *)features)[i * width + k] : ((const double *)features)[i * width + k];
            if (!isfinite(row[k]))
                return 0;
            most = fabs(row[k]) > most ? fabs(row[k]) : most;
        }
        frexp(most, &exponent);
        for (long k = 0; k < width; k++) {
            row[k] = ldexp(row[k], -exponent);
            squares[k] = row[k] * row[k];
        }
        for (long k = width; k < padded; k++)
            squares[k] = 0;
        for (long half = padded / 2; half > 0; half /= 2)
            for (long k = 0; k < half; k++)
                squares[k] += squares[k + half];
        double root = sqrt(squares[0] / (double)width), factor = root > 0 ? 16 / root : 0;
        for (long k = 0; k < width; k++) {
            double code = rint(row[k] * factor);
            codes[i * width + k] = (int8_t)(code > 127 ? 127 : code < -127 ? -127 : code);
        }
    }
    return 1;
}

/* codes (count) = sums >> shift, from 0 to 127. */
void ns_rectify(long count, long shift, const int32_t *sums, int8_t *codes) {
    for (long k = 0; k < count; k++) {
        int32_t code = sums[k] >> shift;
        codes[k] = (int8_t)(code > 127 ? 127 : code < 0 ? 0 : code);
    }
}

/* rounded (count) = numbers, to the nearest of float32. Returns whether all are finite. */
long ns_round(long count, const double *numbers, float *rounded) {
    int finite = 1;
    for (long k = 0; k < count; k++)
        finite &= isfinite(rounded[k] = (float)numbers[k]) != 0;
    return finite;
}

/* steps + rests (d, columns) move by U E, for U = u1 + u2 + u3 (d, n) and E = e1 + e2 + e3 (n, columns); see `move`. Returns how
   many entries are near a half. */
long ns_move(long level, long threads, long d, long n, long columns, int64_t *steps, double *rests, const double *u1,
             const double *u2, const double *u3, const double *e1, const double *e2, const double *e3, const double *doubt,
             int64_t *near, long near_size) {
    struct job job = {.threads = threads, .d = d, .n = n, .columns = columns, .lefts = {u1, u2, u3}, .rights = {e1, e2, e3}};
    job.doubt = doubt, job.out = steps, job.rests = rests, job.near = near, job.near_size = near_size;
    run(&job, CHOOSE(move_real, level), (d + STRIP - 1) / STRIP);
    return job.near_count;
}
