// The statistics of float32 arrays in one pass over memory: what tally.py computes by NumPy in six.

#include <cstddef>
#include <cstdint>

struct Tally {
    double shift, sum, squares;  // of the differences to `shift`, the first element
    int32_t low, high;           // extremes, as integers that order as the floats do
    uint32_t zeros, tiny;        // elements that are zero; that are below the smallest normal number, zeros included
};

#if defined(__x86_64__) && defined(__linux__)
__attribute__((target_clones("avx2", "default")))
#endif
static void tally(const float* x, const int32_t* bits, size_t n, int32_t smallest_normal, Tally* out) {
    const double shift = x[0];
    double sum = 0, squares = 0;
    int32_t low = INT32_MAX, high = INT32_MIN;
    uint32_t zeros = 0, tiny = 0;
#pragma omp simd reduction(+ : sum, squares, zeros, tiny) reduction(min : low) reduction(max : high)
    for (size_t i = 0; i < n; i++) {
        const int32_t b = bits[i];
        const int32_t magnitude = b & 0x7fffffff;
        const int32_t key = b ^ ((b >> 31) & 0x7fffffff);
        low = key < low ? key : low;
        high = key > high ? key : high;
        zeros += magnitude == 0;
        tiny += magnitude < smallest_normal;
        const double d = double(x[i]) - shift;
        sum += d;
        squares += d * d;
    }
    *out = {shift, sum, squares, low, high, zeros, tiny};
}

extern "C" void torchsan_tally(const float* x, size_t n, size_t piece, int32_t smallest_normal, Tally* out) {
    for (size_t i = 0; i < n; i += piece) {
        const float* start = x + i;
        const size_t left = n - i;
        tally(start, reinterpret_cast<const int32_t*>(start), left < piece ? left : piece, smallest_normal, out++);
    }
}
