// Kernels for small changes on an NVIDIA GPU. `neverseen.hardware.fused_small_changes` compiles and launches them.
//
// The formulas and bounds are those of `torch_small_changes.py`, with the names that its fields have there. Here a
// column of U or V is a row, so all arrays of k columns have shape (k, d). What many threads find together, they add to,
// or compare with, a number in memory that was zero before. Magnitudes are compared as bit patterns, which are in the
// same order as the magnitudes; a NaN is the largest.
//
// A warp is `LANES` threads that do one thing together. In the tests, which run this code on a processor, it is one.

typedef long long Whole;
typedef unsigned long long Bits;

#ifdef __CUDA_ARCH__
#define LANES 32
#else
#define LANES 1
#endif
#define LANE (threadIdx.x % LANES)
#define EACH extern "C" __global__ void

constexpr double SLACK = 1.0 + 1.0 / 1073741824.0;  // more than some thousand roundings of a sum of positive numbers
constexpr double UNIT = 1.0 / 4503599627370496.0;  // 2**-52
constexpr double LITTLE = 1.0 / 1125899906842624.0;  // 2**-50
constexpr int MOST_ROWS = 64, SEEN_AT_ONCE = 16;

__device__ static Bits bits_of(double value) {
    union { double value; Bits bits; } both;
    both.value = value;
    return both.bits;
}

__device__ static double from_bits(Bits bits) {
    union { double value; Bits bits; } both;
    both.bits = bits;
    return both.value;
}

__device__ static double magnitude(double value) { return from_bits(bits_of(value) & 0x7fffffffffffffffull); }

// The larger one; NaN if one is.
__device__ static double larger(double left, double right) { return left != left || left > right ? left : right; }

// 2**exponent exactly, for -1022 to 1023.
__device__ static double power(Whole exponent) {
    exponent = exponent < -1022 ? -1022 : exponent > 1023 ? 1023 : exponent;
    return from_bits((Bits)(exponent + 1023) << 52);
}

// The least e such that value < 2**e, for a number of normal size.
__device__ static Whole exponent_of(double value) {
    return value == 0.0 ? 0 : (Whole)((bits_of(value) >> 52) & 2047) - 1022;
}

// Modulo 2**64, as all integer arithmetic here. Which shifts are right is decided elsewhere.
__device__ static Whole shifted(Whole value, Whole by) { return by < 0 || by > 63 ? 0 : (Whole)((Bits)value << by); }
__device__ static Whole times(Whole left, Whole right) { return (Whole)((Bits)left * (Bits)right); }
__device__ static Whole plus(Whole left, Whole right) { return (Whole)((Bits)left + (Bits)right); }
__device__ static Whole minus(Whole left, Whole right) { return (Whole)((Bits)left - (Bits)right); }

__device__ static double sign_of(Whole random) { return (random & 1) ? -1.0 : 1.0; }

// -- what the threads of a warp find together: all of them call these ---------------------------------------------------

__device__ static double warp_sum(double value) {
#ifdef __CUDA_ARCH__
    for (int off = 16; off; off >>= 1) value += __shfl_xor_sync(~0u, value, off);
#endif
    return value;
}

__device__ static Whole warp_sum(Whole value) {
#ifdef __CUDA_ARCH__
    for (int off = 16; off; off >>= 1) value = plus(value, __shfl_xor_sync(~0u, value, off));
#endif
    return value;
}

__device__ static void add(Whole *place, Whole value) {
    value = warp_sum(value);
    if (LANE == 0) atomicAdd((Bits *)place, (Bits)value);
}

__device__ static void add(double *place, double value) {
    value = warp_sum(value);
    if (LANE == 0) atomicAdd(place, value);
}

__device__ static void most(double *place, double value) {
    Bits bits = bits_of(magnitude(value));
#ifdef __CUDA_ARCH__
    for (int off = 16; off; off >>= 1) {
        Bits other = __shfl_xor_sync(~0u, bits, off);
        bits = other > bits ? other : bits;
    }
#endif
    if (LANE == 0) atomicMax((Bits *)place, bits);
}

// Threads of a row of blocks go through `size` numbers in turns.
#define THROUGH(at, size) \
    for (Whole at = (Whole)blockIdx.x * blockDim.x + threadIdx.x; at < size; at += (Whole)gridDim.x * blockDim.x)
// Warps go through `size` rows in turns.
#define WARPS(at, size) \
    for (Whole at = ((Whole)blockIdx.x * blockDim.x + threadIdx.x) / LANES; at < size; \
         at += (Whole)gridDim.x * blockDim.x / LANES)

// `told`, which many kernels read, is slips and residuals of each class, and then: sign, bits, gamma.

struct Tops {  // the first numbers in memory that were zero before
    double answers, correction, estimate, estimate2, numbers, whole, moved, off, reach, left_over, wrong;
};

// -- products -----------------------------------------------------------------------------------------------------------

// out[r, i] = sum over j of matrix[i, j] rows[r, j], for up to four rows: each entry of the matrix is read once.
template <int ROWS>
__device__ static void dots_of(const double *row, const double *rows, double *out, Whole high, Whole wide) {
    double sums[ROWS] = {};
    Whole j = LANE;
    for (; j + 7 * LANES < wide; j += 8 * LANES) {
        double entries[8];  // many on their way at once
        for (int t = 0; t < 8; t++) entries[t] = row[j + t * LANES];
        for (int t = 0; t < 8; t++)
            for (int r = 0; r < ROWS; r++) sums[r] += entries[t] * rows[r * wide + j + t * LANES];
    }
    for (; j < wide; j += LANES)
        for (int r = 0; r < ROWS; r++) sums[r] += row[j] * rows[r * wide + j];
    for (int r = 0; r < ROWS; r++) {
        double sum = warp_sum(sums[r]);
        if (LANE == 0) out[r * high] = sum;
    }
}

// The same for two matrices.
EACH dots(const double *matrix, double *out, Whole high, const double *other, double *out2, Whole high2,
          const double *rows, Whole count, Whole wide) {
    WARPS(at, high + high2) {
        bool second = at >= high;
        Whole i = second ? at - high : at, width = second ? high2 : high;
        const double *row = (second ? other : matrix) + i * wide;
        double *place = (second ? out2 : out) + i;
        if (count == 1) dots_of<1>(row, rows, place, width, wide);
        if (count == 2) dots_of<2>(row, rows, place, width, wide);
        if (count == 3) dots_of<3>(row, rows, place, width, wide);
        if (count == 4) dots_of<4>(row, rows, place, width, wide);
    }
}

// out[r, j] += sign * sum over i of rows[r, i] matrix[i, j], for a few rows. A warp has a few columns, and for each of
// them some threads, which share the sum.
EACH add_sums(const double *rows, const double *matrix, double *out, Whole count, Whole high, Whole wide, Whole sign) {
    const int columns = LANES < 4 ? 1 : 4, shares = LANES / columns;
    WARPS(block, (wide + columns - 1) / columns) {
        Whole j = block * columns + LANE % columns, from = LANE / columns;
        for (Whole r = 0; r < count; r++) {
            double sum = 0.0;
            Whole i = j < wide ? from : high;
            for (; i + 7 * shares < high; i += 8 * shares) {
                double entries[8];
                for (int t = 0; t < 8; t++) entries[t] = matrix[(i + t * shares) * wide + j];
                for (int t = 0; t < 8; t++) sum += rows[r * high + i + t * shares] * entries[t];
            }
            for (; i < high; i += shares) sum += rows[r * high + i] * matrix[i * wide + j];
#ifdef __CUDA_ARCH__
            for (int off = 16; off >= columns; off >>= 1) sum += __shfl_xor_sync(~0u, sum, off);
#endif
            if (from == 0 && j < wide) out[r * wide + j] += sign * sum;
        }
    }
}

// s (1 + s core)^-1 of a positive definite 1 + s core, by elimination; one block.
EACH core_inverse(const double *core, const double *told, double *out, Whole rows, Whole columns) {
#ifdef __CUDA_ARCH__
    __shared__ double a[MOST_ROWS * MOST_ROWS];
#define TOGETHER __syncthreads()
#else
    static double a[MOST_ROWS * MOST_ROWS];
#define TOGETHER
#endif
    int k = (int)rows;
    double sign = told[2 * columns];
    for (int at = threadIdx.x; at < k * k; at += blockDim.x) a[at] = sign * core[at] + (at / k == at % k ? 1.0 : 0.0);
    TOGETHER;
    for (int p = 0; p < k; p++) {
        double inverse = 1.0 / a[p * k + p];
        for (int at = threadIdx.x; at < k * k; at += blockDim.x) {
            int i = at / k, j = at - i * k;
            if (i != p && j != p) a[at] -= a[i * k + p] * inverse * a[p * k + j];
        }
        TOGETHER;
        for (int j = threadIdx.x; j < k; j += blockDim.x)
            if (j != p) {
                a[p * k + j] *= inverse;
                a[j * k + p] *= -inverse;
            } else
                a[p * k + p] = inverse;
        TOGETHER;
    }
    for (int at = threadIdx.x; at < k * k; at += blockDim.x) out[at] = sign * a[at];
}

// -- samples ------------------------------------------------------------------------------------------------------------

// Codes as float64, |c|_1 and c r; a row of blocks for each sample.
EACH read_codes(const signed char *codes, const Whole *probe, double *floats, double *sums, Whole *seen, Whole d) {
    Whole row = blockIdx.y, length = 0, product = 0;
    THROUGH(i, d) {
        Whole code = codes[row * d + i];
        floats[row * d + i] = (double)code;
        length += code < 0 ? -code : code;
        product = plus(product, times(code, probe[i]));
    }
    add(sums + row, (double)length);  // integers far below 2**53
    add(seen + row, product);
}

// The samples aside as float64, and times their signs; and s c r.
EACH read_aside(const signed char *codes, const signed char *signs, const Whole *probe, double *floats, double *turned,
                Whole *inner, Whole d) {
    Whole row = blockIdx.y, sign = signs[row], product = 0;
    THROUGH(i, d) {
        Whole code = codes[row * d + i];
        floats[row * d + i] = (double)code;
        turned[row * d + i] = (double)(code * sign);
        product = plus(product, times(code * sign, probe[i]));
    }
    add(inner + row, product);
}

// A' r modulo 2**64; a row of blocks for some of the samples aside.
EACH see(const signed char *codes, const Whole *inner, const Whole *image, Whole *seen, Whole d, Whole count) {
    Whole first = (Whole)blockIdx.y * SEEN_AT_ONCE;
    THROUGH(i, d) {
        Whole sum = blockIdx.y == 0 ? image[i] : 0;
        for (Whole row = first; row < first + SEEN_AT_ONCE && row < count; row++)
            sum = plus(sum, times(codes[row * d + i], inner[row]));
        atomicAdd((Bits *)seen + i, (Bits)sum);
    }
}

// -- U and V ------------------------------------------------------------------------------------------------------------

EACH top(const double *values, double *place, Whole size) {
    double found = 0.0;
    THROUGH(at, size) found = larger(found, magnitude(values[at]));
    most(place, found);
}

__device__ static Whole finer_of(double found, Whole limbs, Whole bits) { return limbs * bits - 1 - exponent_of(found); }

// Values times 2**finer as integers, and their limbs of so many bits, highest first, (limbs, k, d).
// The values are multiplied by the sign first, if `turn`.
EACH cut(const double *values, const double *told, const double *found, double *rounded, double *side, Whole size,
         Whole columns, Whole limbs, Whole turn) {
    double sign = turn ? told[2 * columns] : 1.0;
    Whole bits = (Whole)told[2 * columns + 1];
    double scale = power(finer_of(*found, limbs, bits));
    THROUGH(at, size) {
        double block = rint(values[at] * sign * scale);
        rounded[at] = block;
        for (Whole place = limbs - 1; place > 0; place--) {
            double high = rint(block * power(-bits * place));
            side[(limbs - 1 - place) * size + at] = high;
            block -= high * power(bits * place);
        }
        side[(limbs - 1) * size + at] = block;
    }
}

// `2**finer before - A' block` modulo 2**64, and an upper bound on it in real numbers.
// The roundings of `estimate` are five, of at most 2**-53 of `sum` each.
__device__ static Whole remainder_of(Whole before, Whole finer, const double *product, const double *side, Whole at,
                                     Whole size, Whole limbs, Whole bits, double gamma, double *bound) {
    Whole exact = shifted(before, finer);
    double estimate = (double)before * power(finer), sum = magnitude(estimate);
    for (Whole place = limbs - 1; place >= 0; place--) {
        Whole here = (limbs - 1 - place) * size + at;
        double part = product[here] + gamma * side[here];  // exact: far below 2**53
        double scaled = part * power(bits * place);
        exact = minus(exact, shifted((Whole)part, bits * place));
        estimate -= scaled;
        sum += magnitude(scaled);
    }
    *bound = magnitude(estimate) + sum * LITTLE;
    return exact;
}

// The first residual, and the same as float64.
EACH first_remainder(const double *floats, const double *told, const double *product, const double *side, Tops *tops,
               Whole *residual, double *reals, Whole size, Whole columns) {
    Whole bits = (Whole)told[2 * columns + 1], finer = finer_of(tops->answers, 2, bits);
    double gamma = told[2 * columns + 2], found = 0.0;
    THROUGH(at, size) {
        double bound;
        Whole exact = remainder_of((Whole)floats[at], finer, product, side, at, size, 2, bits, gamma, &bound);
        residual[at] = exact;
        reals[at] = (double)exact;
        found = larger(found, bound);
    }
    most(&tops->estimate, found);
}

__device__ static Whole half_of(Whole k) {
    Whole bits = 0;
    while ((k - 1) >> bits) bits++;
    return (53 - bits) / 2;
}

// V, what its check needs, and U in three parts; a row of blocks for each column.
EACH finished_images(const Whole *residual, const double *told, const double *product, const double *side, const double *first,
            const double *second, const Whole *probe, const Whole *seen, Tops *tops, double *squares, Whole *check,
            double *high, double *middle, double *low, double *highs, double *middles, double *lows, Whole d, Whole k,
            Whole columns, Whole limbs) {
    Whole bits = (Whole)told[2 * columns + 1], row = blockIdx.y, off = 0;
    Whole finer = finer_of(tops->answers, 2, bits), finer2 = finer_of(tops->correction, limbs, bits);
    Whole half = half_of(k), place = half - exponent_of(tops->answers);
    double gamma = told[2 * columns + 2], found = 0.0, square = 0.0, up = 0.0, between = 0.0, down = 0.0;
    double grid = power(-place), finer_grid = power(1 - half - place);
    THROUGH(i, d) {
        Whole at = row * d + i;
        double bound;
        Whole exact = remainder_of(residual[at], finer2, product, side, at, k * d, limbs, bits, gamma, &bound);
        double real = (double)exact;
        found = larger(found, bound);
        square += real * real;
        // r 2**(f1 + f2) V = 2**(f1 + f2) r C' - (A' r)(2**f2 b1 + b2): what depends on the row is added later.
        Whole block = plus(shifted((Whole)first[at], finer2), (Whole)second[at]);
        off = plus(off, plus(times(exact, probe[i]), times(block, seen[i])));
        double coarse = rint(first[at] * power(place - finer)) * grid, below = first[at] * power(-finer) - coarse;
        double finer_part = rint(below * power(place + half - 1)) * finer_grid;
        double rest = (below - finer_part) + second[at] * power(-finer - finer2);
        high[at] = coarse;
        middle[at] = finer_part;
        low[at] = rest;
        up = larger(up, magnitude(coarse));
        between = larger(between, magnitude(finer_part));
        down = larger(down, magnitude(rest));
    }
    most(&tops->estimate2, found);
    add(squares + row, square);
    add(check + row, off);
    most(highs + row, up);
    most(middles + row, between);
    most(lows + row, down);
}

// -- E ------------------------------------------------------------------------------------------------------------------

__device__ static double cut_of(Whole d) {  // |c|_1 is at most 127 d
    Whole bits = 0;
    while ((127 * d) >> bits) bits++;
    return power(52 - bits);
}

// Steps and both parts of rests side by side, (d, 3 C); and each row times random vectors.
EACH read_solution(const Whole *steps, const double *rests, const Whole *across, double *side, Whole *steps_across,
                   double *rests_across, Tops *tops, Whole d, Whole columns) {
    double found = 0.0, cut = cut_of(d);
    WARPS(i, d) {
        Whole sum = 0;
        double rest = 0.0;
        for (Whole j = LANE; j < columns; j += LANES) {
            Whole step = steps[i * columns + j];
            double here = rests[i * columns + j], coarse = rint(here * cut) / cut;
            double *out = side + i * 3 * columns + j;
            out[0] = (double)step;
            out[columns] = coarse;
            out[2 * columns] = here - coarse;
            found = larger(found, magnitude((double)step));
            sum = plus(sum, times(step, across[j]));
            rest += here * sign_of(across[j]);
        }
        sum = warp_sum(sum);
        rest = warp_sum(rest);
        if (LANE == 0) {
            steps_across[i] = sum;
            rests_across[i] = rest;
        }
    }
    most(&tops->numbers, found);
}

// Codes times these; a row of blocks for each sample.
EACH codes_across(const double *floats, const Whole *steps_across, const double *rests_across, Whole *whole, double *rest,
                  Whole d) {
    Whole row = blockIdx.y, sum = 0;
    double part = 0.0;
    THROUGH(i, d) {
        sum = plus(sum, times((Whole)floats[row * d + i], steps_across[i]));
        part += floats[row * d + i] * rests_across[i];
    }
    add(whole + row, sum);
    add(rest + row, part);
}

// E and how far off it is, and its checks; a warp for each sample. It also finishes the check of V.
EACH misfit(const double *product, const double *wanted, const double *told, const Whole *across, const double *sums,
            const Whole *codes_seen, const Whole *whole_across, const double *rest_across, const Whole *check, double *whole,
            double *rest, double *error, Tops *tops, Whole d, Whole k, Whole columns, Whole limbs) {
    double found = 0.0, wrong = 0.0, cut = cut_of(d);
    Whole bits = (Whole)told[2 * columns + 1];
    Whole finer = finer_of(tops->answers, 2, bits) + finer_of(tops->correction, limbs, bits);
    WARPS(row, k) {
        Whole sum = 0;
        double part = 0.0;
        for (Whole j = LANE; j < columns; j += LANES) {
            const double *from = product + row * 3 * columns + j;
            double want = wanted[row * columns + j], here = want - from[0], beside = -from[columns] - from[2 * columns];
            whole[row * columns + j] = here;
            rest[row * columns + j] = beside;
            error[row * columns + j] =
                (sums[row] * (told[j] + (d + 8) * UNIT / cut) + UNIT * magnitude(beside)) * SLACK + UNIT / 256.0;
            found = larger(found, (magnitude(here) + magnitude(beside)) + 1.0);
            sum = plus(sum, times(minus((Whole)here, (Whole)want), across[j]));
            part += beside * sign_of(across[j]);
        }
        sum = plus(warp_sum(sum), whole_across[row]);  // 0 modulo 2**64
        part = magnitude(warp_sum(part) + rest_across[row]);
        if (LANE == 0) {
            if (sum != 0) wrong += 1.0;
            if (!(part <= (d + columns + 8) * LITTLE * columns * sums[row])) wrong += 1.0;
            if (check[row] != shifted(codes_seen[row], finer)) wrong += 1.0;
        }
    }
    most(&tops->whole, found);
    add(&tops->wrong, wrong);
}

// -- the move -----------------------------------------------------------------------------------------------------------

// E = e1 + e2 + e3 times the sign, as the sum, e2 + e3, e3, e1 and e2, one after the other; and bounds; a thread for each class.
EACH bound(const double *whole, const double *rest, const double *error, const double *told, const double *sums,
           const double *squares, const double *highs, const double *middles, const double *lows, double *parts, double *known,
           Tops *tops, Whole d, Whole k, Whole columns, Whole limbs) {
    Whole bits = (Whole)told[2 * columns + 1];
    Whole finer = finer_of(tops->answers, 2, bits) + finer_of(tops->correction, limbs, bits);
    Whole half = half_of(k), level = half - exponent_of(tops->whole), size_of_part = k * columns;
    double sign = told[2 * columns], gamma = told[2 * columns + 2], norm = power(-finer) * (1.0 + (d + 8) * UNIT);
    double up_unit = power(level), down_unit = power(-level), all = 0.0, worst = 0.0;
    double finer_up_unit = power(level + half - 1), finer_down_unit = power(1 - half - level);
    THROUGH(j, columns) {
        double left_over = 0.0, reach = 0.0, inexact = 0.0, lost = 0.0;
        for (Whole row = 0; row < k; row++) {
            Whole at = row * columns + j;
            double size = magnitude(whole[at]) + magnitude(rest[at]) + 1.0;
            double e1 = rint((whole[at] + rest[at]) * up_unit) * down_unit, below = (whole[at] - e1) + rest[at];
            double e2 = rint(below * finer_up_unit) * finer_down_unit, e3 = below - e2;
            left_over += sqrt(squares[row]) * norm * size;
            reach += (highs[row] + middles[row] + lows[row]) * size;
            inexact += highs[row] * magnitude(e3) + middles[row] * (magnitude(e2) + magnitude(e3)) + lows[row] * size;
            lost += sqrt(sums[row] * 127.0) * (error[at] + magnitude(below) * UNIT);  // ||c||**2 <= 127 |c|_1
            parts[at] = (e1 + below) * sign;
            parts[size_of_part + at] = below * sign;
            parts[2 * size_of_part + at] = e3 * sign;
            parts[3 * size_of_part + at] = e1 * sign;
            parts[4 * size_of_part + at] = e2 * sign;
        }
        left_over *= SLACK;
        reach *= SLACK;
        double slip = (told[j] + (2 * k + 8) * UNIT * SLACK * inexact * SLACK + LITTLE) * SLACK;
        double residual = (told[columns + j] + left_over + lost * SLACK) * SLACK;
        known[j] = slip;
        known[columns + j] = residual;
        known[2 * columns + j] = (residual / gamma + slip) * SLACK;
        all += reach;
        worst = larger(worst, left_over);
    }
    add(&tops->reach, all);
    most(&tops->left_over, worst);
}

// E times random signs; a warp for each row.
EACH turn(const double *both, const Whole *across, double *turned, Whole k, Whole columns) {
    WARPS(row, k) {
        double sum = 0.0;
        for (Whole j = LANE; j < columns; j += LANES) sum += both[row * columns + j] * sign_of(across[j]);
        sum = warp_sum(sum);
        if (LANE == 0) turned[row] = sum;
    }
}

// Steps and rests moved by U S E, whether an entry is in doubt, and the check of the move; a warp for each row.
// The move is the sum of `exact`, `nearly` and `others` if it is `made`.
// The check takes U from the integers of which V is known: so it sees too whether its parts are right.
EACH move(const Whole *steps, const double *rests, const double *told, const double *first, const double *second,
          const double *high, const double *middle, const double *low, const double *parts, const double *exact,
          const double *nearly, const double *others, const double *known, const Whole *across, const double *turned,
          Whole *moved, double *now, double *near, Tops *tops, Whole d, Whole k, Whole columns, Whole limbs, Whole made) {
    double found = 0.0, off = 0.0;
    Whole bits = (Whole)told[2 * columns + 1], finer = finer_of(tops->answers, 2, bits), size_of_part = k * columns;
    double coarse_unit = power(-finer), fine_unit = power(-finer - finer_of(tops->correction, limbs, bits));
    WARPS(i, d) {
        double turn = 0.0;
        for (Whole j = LANE; j < columns; j += LANES) {
            Whole at = i * columns + j, change = 0;
            double sums[3] = {made ? exact[at] : 0.0, made ? nearly[at] : 0.0, made ? others[at] : 0.0};
            for (Whole row = 0; row < k && !made; row++) {
                double u1 = high[row * d + i], u2 = middle[row * d + i], u3 = low[row * d + i];
                const double *e = parts + row * columns + j;
                sums[0] += u1 * e[3 * size_of_part];
                sums[1] += u1 * e[4 * size_of_part] + u2 * e[3 * size_of_part];
                sums[2] += u1 * e[2 * size_of_part] + u2 * e[size_of_part] + u3 * e[0];
            }
            double before = rests[at], rest = before;
            for (int part = 0; part < 3; part++) {
                double whole = rint(sums[part]);
                change = plus(change, (Whole)whole);
                rest += sums[part] - whole;
            }
            double carry = rint(rest);
            change = plus(change, (Whole)carry);
            rest -= carry;
            Whole step = plus(steps[at], change);
            moved[at] = step;
            now[at] = rest;
            if (!(0.5 - magnitude(rest) > known[2 * columns + j])) near[j] = 1.0;
            found = larger(found, magnitude((double)step));
            turn += ((double)change + rest - before) * sign_of(across[j]);
        }
        for (Whole row = LANE; row < k; row += LANES) {
            Whole at = row * d + i;
            turn -= (first[at] * coarse_unit + second[at] * fine_unit) * turned[row];
        }
        off = larger(off, magnitude(warp_sum(turn)));
    }
    most(&tops->moved, found);
    most(&tops->off, off);
}

// What the caller wants to know: a number below 1 if all holds, the largest step, and how many checks fail; one thread.
EACH tell(const double *told, const double *sums, const Tops *tops, double *out, Whole k, Whole columns, Whole limbs) {
    if (blockIdx.x || threadIdx.x) return;
    Whole bits = (Whole)told[2 * columns + 1];
    double longest = 0.0, worst = 0.0;
    for (Whole row = 0; row < k; row++) longest = larger(longest, sums[row]);
    double limits[8] = {
        tops->left_over * 4194304.0 / told[2 * columns + 2],
        tops->reach * UNIT,
        tops->estimate / 2305843009213693952.0,  // 2**61
        tops->estimate2 / 2305843009213693952.0,
        magnitude((double)(finer_of(tops->answers, 2, bits) - 31) / 32.0),  // shifts by 0 to 62
        magnitude((double)(finer_of(tops->correction, limbs, bits) - 31) / 32.0),
        longest * tops->numbers * UNIT,
        tops->whole * UNIT / 2.0,
    };
    for (int at = 0; at < 8; at++) worst = larger(worst, limits[at]);
    double tolerance = (k + columns + 8) * LITTLE * tops->reach + (columns + 16) * (columns + 16) * LITTLE;
    out[0] = worst;
    out[1] = tops->moved;
    out[2] = tops->wrong + (tops->off <= tolerance ? 0.0 : 1.0);
}
