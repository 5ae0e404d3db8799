// The statistics of arrays in one pass over memory: what tally.py computes by NumPy in several. AOTInductor packages that
// print have this source in them, too.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace torchsan_native {
namespace {

struct Floats {
    double shift, sum, squares;  // of the differences of finite elements to `shift`, the first of them
    double low, high;            // of the finite elements
    uint64_t nan, posinf, neginf;
    uint64_t zeros, tiny;  // elements that are zero; that are below the smallest normal number, zeros included
};

struct Integers {
    uint64_t low, high;         // the extremes, as bits of 64
    uint64_t ones, four_billions;  // the sum of the differences to `low`: ones + 2**32 * four_billions
    double squares;             // of the same
    uint64_t zeros;
};

struct Complexes {
    double shifts[2], sums[2], squares[2];  // of the real and the imaginary parts, as those of floats
    double low, high;                       // of the squared magnitudes
    uint64_t same[2];                       // whether all real and all imaginary parts are equal
    uint64_t zeros, subnormals;             // elements that are zero; that have a subnormal part
    uint64_t finite;                        // whether all are; otherwise nothing else is said
};

// A block fits the first cache: converted numbers lie there, and a second look at it costs little.
constexpr size_t BLOCK = 4096;

// The bits of floats, and the order of floats as one of integers: 0 to NaN as they are, −0 to −NaN below them.
template <class Float> struct Bits {
    using Key = std::conditional_t<sizeof(Float) == 4, int32_t, int64_t>;
    typedef Key __attribute__((__may_alias__)) Aliased;  // what is stored as floats may be read as
    static constexpr Key sign = Key(1) << (8 * sizeof(Float) - 1);
    static constexpr Key infinity = sizeof(Float) == 4 ? Key(0x7f800000) : Key(0x7ff0000000000000);

    static constexpr Key ordered(Key bits) { return bits ^ ((bits >> (8 * sizeof(Float) - 1)) & ~sign); }
    static bool finite(Key low, Key high) { return ordered(sign | infinity) < low && high < infinity; }
    static Key of(Float value) {
        Key bits;
        std::memcpy(&bits, &value, sizeof bits);
        return bits;
    }
    static Float value(Key bits) {
        Float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
};

// Adds the finite numbers of a block to `out`, and returns whether there are others, of which nothing is added then.
template <class Float, class Key = typename Bits<Float>::Key>
bool add_finite(const Float* x, size_t n, Key smallest_normal, Key* lowest, Key* highest, Floats* out) {
    const auto* bits = reinterpret_cast<const typename Bits<Float>::Aliased*>(x);
    const double shift = out->shift;
    Key low = ~Bits<Float>::sign, high = Bits<Float>::sign, zeros = 0, tiny = 0;
    double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum, squares, zeros, tiny) reduction(min : low) reduction(max : high)
    for (size_t i = 0; i < n; i++) {
        const Key magnitude = bits[i] & ~Bits<Float>::sign;
        const Key key = Bits<Float>::ordered(bits[i]);
        low = key < low ? key : low;
        high = key > high ? key : high;
        zeros += magnitude == 0;
        tiny += magnitude < smallest_normal;
        const double d = double(x[i]) - shift;
        sum += d;
        squares += d * d;
    }
    if (!Bits<Float>::finite(low, high)) return true;
    *lowest = low < *lowest ? low : *lowest;
    *highest = high > *highest ? high : *highest;
    out->sum += sum;
    out->squares += squares;
    out->zeros += zeros;
    out->tiny += tiny;
    return false;
}

// Adds a block in which not all is finite.
template <class Float, class Key = typename Bits<Float>::Key>
void add_all(const Float* x, size_t n, Key smallest_normal, Key* lowest, Key* highest, Floats* out) {
    for (size_t i = 0; i < n; i++) {
        const Key bits = Bits<Float>::of(x[i]), magnitude = bits & ~Bits<Float>::sign;
        if (magnitude < Bits<Float>::infinity)
            add_finite(x + i, 1, smallest_normal, lowest, highest, out);
        else
            (magnitude > Bits<Float>::infinity ? out->nan : bits < 0 ? out->neginf : out->posinf) += 1;
    }
}

// `load(i, n, room)` returns the n numbers from i on: where they lie, or converted into the room. `given` is a shift to
// take instead of an element.
template <class Float, class Load>
void floats(size_t n, size_t piece, double smallest_normal, Floats* out, Load load, const double* given = nullptr) {
    using Key = typename Bits<Float>::Key;
    alignas(64) Float room[BLOCK];
    const Key tiny = Bits<Float>::of(Float(smallest_normal));
    for (size_t start = 0; start < n; start += piece, out++) {
        const size_t end = n - start < piece ? n : start + piece;
        Key low = ~Bits<Float>::sign, high = Bits<Float>::sign;
        bool shifted = given != nullptr;
        *out = Floats();
        if (shifted) out->shift = *given;
        for (size_t i = start; i < end; i += BLOCK) {
            const size_t count = end - i < BLOCK ? end - i : BLOCK;
            const Float* x = load(i, count, room);
            for (size_t j = 0; j < count && !shifted; j++) {
                const Key key = Bits<Float>::ordered(Bits<Float>::of(x[j]));
                shifted = Bits<Float>::finite(key, key);
                if (shifted) out->shift = x[j];
            }
            if (add_finite(x, count, tiny, &low, &high, out)) add_all(x, count, tiny, &low, &high, out);
        }
        out->low = Bits<Float>::value(Bits<Float>::ordered(low));
        out->high = Bits<Float>::value(Bits<Float>::ordered(high));
    }
}

// `load` as for floats, of both parts side by side.
template <class Float, class Load>
void complexes(size_t n, size_t piece, double smallest_normal, Complexes* out, Load load) {
    using Key = typename Bits<Float>::Key;
    alignas(64) Float room[2 * BLOCK], parts[2][BLOCK];
    const Key tiny = Bits<Float>::of(Float(smallest_normal));
    for (size_t start = 0; start < n; start += piece, out++) {
        const size_t end = n - start < piece ? n : start + piece;
        Floats of_part[2] = {};
        Key lows[2] = {~Bits<Float>::sign, ~Bits<Float>::sign}, highs[2] = {Bits<Float>::sign, Bits<Float>::sign};
        double low = __builtin_inf(), high = 0;
        bool odd = false;
        *out = Complexes();
        for (size_t i = start; i < end && !odd; i += BLOCK) {
            const size_t count = end - i < BLOCK ? end - i : BLOCK;
            const Float* x = load(2 * i, 2 * count, room);
            for (size_t j = 0; j < count; j++) parts[0][j] = x[2 * j], parts[1][j] = x[2 * j + 1];
            for (int part = 0; part < 2; part++) {
                if (i == start) of_part[part].shift = parts[part][0];
                odd |= add_finite(parts[part], count, tiny, lows + part, highs + part, of_part + part);
            }
            using Aliased = const typename Bits<Float>::Aliased;
            Aliased* bits[2] = {reinterpret_cast<Aliased*>(parts[0]), reinterpret_cast<Aliased*>(parts[1])};
            Key zeros = 0, subnormals = 0;
#pragma omp simd reduction(+ : zeros, subnormals) reduction(min : low) reduction(max : high)
            for (size_t j = 0; j < count; j++) {
                const Key a = bits[0][j] & ~Bits<Float>::sign, b = bits[1][j] & ~Bits<Float>::sign;
                zeros += (a | b) == 0;
                subnormals += ((a != 0) & (a < tiny)) | ((b != 0) & (b < tiny));
                const double real = parts[0][j], imaginary = parts[1][j];
                const double magnitude = real * real + imaginary * imaginary;
                low = magnitude < low ? magnitude : low;
                high = magnitude > high ? magnitude : high;
            }
            out->zeros += zeros;
            out->subnormals += subnormals;
        }
        for (int part = 0; part < 2; part++) {
            out->shifts[part] = of_part[part].shift;
            out->sums[part] = of_part[part].sum;
            out->squares[part] = of_part[part].squares;
            out->same[part] = lows[part] == highs[part];
        }
        out->low = low;
        out->high = high;
        out->finite = !odd;
    }
}

void from_half(const uint16_t* x, size_t n, float* out) {
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
    for (; i < n; i++) {
        const uint32_t exponent = x[i] >> 10 & 31, fraction = x[i] & 1023;
        const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
        float value = Bits<float>::value(int32_t(wide << 23 | fraction << 13));
        if (exponent == 0) value = float(fraction) * 0x1p-24f;
        out[i] = x[i] >> 15 ? -value : value;
    }
}

void from_bfloat16(const uint16_t* x, size_t n, float* out) {
    auto* bits = reinterpret_cast<Bits<float>::Aliased*>(out);
    for (size_t i = 0; i < n; i++) bits[i] = int32_t(uint32_t(x[i]) << 16);
}

template <class T>
void integers(const T* x, size_t n, size_t piece, Integers* out) {
    using Unsigned = std::make_unsigned_t<T>;
    using Square = std::conditional_t<sizeof(T) <= 2, uint64_t, double>;
    for (size_t start = 0; start < n; start += piece, out++) {
        const size_t end = n - start < piece ? n : start + piece;
        T low = x[start], high = x[start];
        uint64_t zeros = 0, ones = 0, four_billions = 0;
#pragma omp simd reduction(+ : zeros) reduction(min : low) reduction(max : high)
        for (size_t i = start; i < end; i++) {
            low = x[i] < low ? x[i] : low;
            high = x[i] > high ? x[i] : high;
            zeros += x[i] == 0;
        }
        Square squares = 0;
#pragma omp simd reduction(+ : ones, four_billions, squares)
        for (size_t i = start; i < end; i++) {
            const uint64_t above = Unsigned(Unsigned(x[i]) - Unsigned(low));
            ones += above & 0xffffffff;
            four_billions += above >> 32;
            squares += Square(above) * Square(above);
        }
        *out = {uint64_t(int64_t(low)), uint64_t(int64_t(high)), ones, four_billions, double(squares), zeros};
    }
}

}  // namespace
}  // namespace torchsan_native

#if !defined(TORCHSAN_RECORDER)
using namespace torchsan_native;

extern "C" {

void torchsan_float32(const float* x, size_t n, size_t piece, double smallest_normal, Floats* out) {
    floats<float>(n, piece, smallest_normal, out, [=](size_t i, size_t, float*) { return x + i; });
}

void torchsan_float64(const double* x, size_t n, size_t piece, double smallest_normal, Floats* out) {
    floats<double>(n, piece, smallest_normal, out, [=](size_t i, size_t, double*) { return x + i; });
}

void torchsan_float16(const uint16_t* x, size_t n, size_t piece, double smallest_normal, Floats* out) {
    floats<float>(n, piece, smallest_normal, out, [=](size_t i, size_t count, float* room) {
        from_half(x + i, count, room);
        return room;
    });
}

void torchsan_bfloat16(const uint16_t* x, size_t n, size_t piece, double smallest_normal, Floats* out) {
    floats<float>(n, piece, smallest_normal, out, [=](size_t i, size_t count, float* room) {
        from_bfloat16(x + i, count, room);
        return room;
    });
}

// `values` has the number that each of the 256 bytes stands for.
void torchsan_float8(
    const uint8_t* x, size_t n, size_t piece, const float* values, double smallest_normal, Floats* out) {
    floats<float>(n, piece, smallest_normal, out, [=](size_t i, size_t count, float* room) {
        for (size_t j = 0; j < count; j++) room[j] = values[x[i + j]];
        return room;
    });
}

void torchsan_complex32(const uint16_t* x, size_t n, size_t piece, double smallest_normal, Complexes* out) {
    complexes<float>(n, piece, smallest_normal, out, [=](size_t i, size_t count, float* room) {
        from_half(x + i, count, room);
        return room;
    });
}

void torchsan_complex64(const float* x, size_t n, size_t piece, double smallest_normal, Complexes* out) {
    complexes<float>(n, piece, smallest_normal, out, [=](size_t i, size_t, float*) { return x + i; });
}

void torchsan_complex128(const double* x, size_t n, size_t piece, double smallest_normal, Complexes* out) {
    complexes<double>(n, piece, smallest_normal, out, [=](size_t i, size_t, double*) { return x + i; });
}

void torchsan_int8(const int8_t* x, size_t n, size_t piece, Integers* out) { integers(x, n, piece, out); }
void torchsan_int16(const int16_t* x, size_t n, size_t piece, Integers* out) { integers(x, n, piece, out); }
void torchsan_int32(const int32_t* x, size_t n, size_t piece, Integers* out) { integers(x, n, piece, out); }
void torchsan_int64(const int64_t* x, size_t n, size_t piece, Integers* out) { integers(x, n, piece, out); }
void torchsan_uint8(const uint8_t* x, size_t n, size_t piece, Integers* out) { integers(x, n, piece, out); }
void torchsan_uint16(const uint16_t* x, size_t n, size_t piece, Integers* out) { integers(x, n, piece, out); }
void torchsan_uint32(const uint32_t* x, size_t n, size_t piece, Integers* out) { integers(x, n, piece, out); }
void torchsan_uint64(const uint64_t* x, size_t n, size_t piece, Integers* out) { integers(x, n, piece, out); }
}
#endif
