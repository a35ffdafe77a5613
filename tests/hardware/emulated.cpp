// small_changes.cu on a processor: one thread does the work of all.
#include <cmath>

#define __global__
#define __device__

struct Place { unsigned x, y; };
static Place threadIdx = {0, 0}, blockIdx = {0, 0}, blockDim = {1, 1}, gridDim = {1, 1};

template <typename T, typename V> static void atomicAdd(T *place, V value) { *place += value; }
template <typename T> static void atomicMax(T *place, T value) { *place = value > *place ? value : *place; }
using std::rint;
using std::sqrt;

extern "C" void in_row(unsigned row) { blockIdx.y = row; }

#include SOURCE
