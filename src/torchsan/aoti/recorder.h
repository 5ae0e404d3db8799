// Records the launches of an AOTInductor package while it runs, without Python. docs/reference/packages.md has the
// format. Off unless TORCHSAN_OUT names a folder when the model is called; then off costs one branch a launch.
//
// Every record is written with write(2) before the launch that it announces: what a kernel that kills the process
// leaves behind is everything up to its own name.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {
namespace torchsan_recorder {

enum Kind : uint8_t { CALL = 1, LAUNCH = 2, TENSOR = 3, NUMBER = 4, END = 5 };
enum Phase : uint8_t { BEFORE = 0, AFTER = 1 };
enum Level : uint8_t { NAMES = 0, PRINT = 1, SAVE = 2 };

class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Bytes& put_text(const char* text) {
    const auto size = static_cast<uint32_t>(std::strlen(text));
    put(size);
    text_.append(text, size);
    return *this;
  }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

inline uint64_t now() {
  using namespace std::chrono;
  return static_cast<uint64_t>(duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count());
}

inline uint64_t thread_number() {
  return static_cast<uint64_t>(std::hash<std::thread::id>()(std::this_thread::get_id()));
}

// One file of one process. What cannot be written is said once, and the model runs on.
class Log {
 public:
  Log(const std::string& folder, const char* program) : folder_(folder) {
    static std::atomic<int> count{0};
    ::mkdir(folder.c_str(), 0777);
    const std::string stem = folder + "/package-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
    const int described = ::open((stem + ".json").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (described >= 0) {
      file_ = described;
      write_all(program, std::strlen(program));
      ::close(described);
    }
    file_ = ::open((stem + ".launches").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (file_ < 0 || described < 0) {
      fail();
      return;
    }
    Bytes head;
    head.put<uint32_t>(1).put<uint32_t>(0x01020304);
    write_all("TSANPKG\n", 8);
    write_all(head.str().data(), head.str().size());
  }

  bool works() const { return file_ >= 0; }
  const std::string& folder() const { return folder_; }

  void write(Kind kind, const Bytes& body, const void* data = nullptr, uint64_t size = 0) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (file_ < 0) {
      return;
    }
    Bytes record;
    record.put<uint64_t>(body.str().size() + size).put<uint8_t>(kind);
    const std::string whole = record.str() + body.str();
    write_all(whole.data(), whole.size());
    if (size > 0) {
      write_all(static_cast<const char*>(data), size);
    }
  }

 private:
  void write_all(const char* data, uint64_t size) {
    while (size > 0 && file_ >= 0) {
      const ssize_t written = ::write(file_, data, size);
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written <= 0) {
        fail();
        return;
      }
      data += written;
      size -= static_cast<uint64_t>(written);
    }
  }

  void fail() {
    std::fprintf(stderr, "torchsan: cannot record launches in %s: %s; the model runs on\n", folder_.c_str(),
                 std::strerror(errno));
    if (file_ >= 0) {
      ::close(file_);
    }
    file_ = -1;
  }

  std::string folder_;
  int file_ = -1;
  std::mutex lock_;
};

// The log of the folder that TORCHSAN_OUT names now; null if it names none, or none that can be written.
inline Log* current_log(const char* program) {
  const char* folder = std::getenv("TORCHSAN_OUT");
  if (folder == nullptr || folder[0] == '\0') {
    return nullptr;
  }
  static std::mutex lock;
  static Log* log = nullptr;  // Never deleted: another thread may be writing.
  const std::lock_guard<std::mutex> guard(lock);
  if (log == nullptr || log->folder() != folder) {
    log = new Log(folder, program);
  }
  return log->works() ? log : nullptr;
}

// What is said of the elements of a tensor.
struct Statistics {
  uint64_t nan = 0, posinf = 0, neginf = 0, zeros = 0, finite = 0;
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  double mean = 0, square = 0;

  // Add those of other elements (Chan et al.).
  void add(const Statistics& other) {
    nan += other.nan, posinf += other.posinf, neginf += other.neginf, zeros += other.zeros;
    low = other.low < low ? other.low : low;
    high = other.high > high ? other.high : high;
    if (other.finite > 0) {
      const double here = static_cast<double>(finite), there = static_cast<double>(other.finite);
      const double apart = other.mean - mean;
      finite += other.finite;
      mean += apart * (there / (here + there));
      square += other.square + apart * apart * (here * there / (here + there));
    }
  }
};

constexpr size_t PIECE = 1 << 16;

template <class Float, class Load>
Statistics of_floats(size_t n, double smallest_normal, Load load) {
  torchsan_native::Floats f;
  Statistics s;
  const auto look = [&](const double* shift) {
    torchsan_native::floats<Float>(n, n, smallest_normal, &f, load, shift);
    s.nan = f.nan, s.posinf = f.posinf, s.neginf = f.neginf, s.zeros = f.zeros;
    s.finite = n - f.nan - f.posinf - f.neginf;
    if (s.finite > 0) {
      s.low = f.low, s.high = f.high, s.mean = f.shift + f.sum / s.finite;
      s.square = std::fmax(0.0, f.squares - f.sum * f.sum / s.finite);
    }
  };
  look(nullptr);
  if (s.square < 1e-6 * f.squares) {
    const double mean = s.mean;
    look(&mean);  // The first element is far from the others.
  }
  return s;
}

template <class Integer>
Statistics of_integers(const void* data, size_t n) {
  torchsan_native::Integers i;
  torchsan_native::integers(static_cast<const Integer*>(data), n, n, &i);
  Statistics s;
  const double total = static_cast<double>(i.ones) + static_cast<double>(i.four_billions) * 4294967296.0;
  s.zeros = i.zeros, s.finite = n;
  s.low = static_cast<double>(static_cast<Integer>(i.low)), s.high = static_cast<double>(static_cast<Integer>(i.high));
  s.mean = s.low + total / static_cast<double>(n);
  s.square = std::fmax(0.0, i.squares - total * total / static_cast<double>(n));
  return s;
}

// Of n elements side by side; false for dtypes that are not read (complex, float8). The codes are c10::ScalarType's.
inline bool of_elements(const void* data, size_t n, int32_t dtype, Statistics* out) {
  const auto* half = static_cast<const uint16_t*>(data);
  switch (dtype) {
    case 0: *out = of_integers<uint8_t>(data, n); return true;
    case 1: *out = of_integers<int8_t>(data, n); return true;
    case 2: *out = of_integers<int16_t>(data, n); return true;
    case 3: *out = of_integers<int32_t>(data, n); return true;
    case 4: *out = of_integers<int64_t>(data, n); return true;
    case 5:
      *out = of_floats<float>(n, 0x1p-14, [=](size_t i, size_t count, float* room) {
        torchsan_native::from_half(half + i, count, room);
        return static_cast<const float*>(room);
      });
      return true;
    case 6:
      *out = of_floats<float>(
          n, 0x1p-126, [=](size_t i, size_t, float*) { return static_cast<const float*>(data) + i; });
      return true;
    case 7:
      *out = of_floats<double>(
          n, 0x1p-1022, [=](size_t i, size_t, double*) { return static_cast<const double*>(data) + i; });
      return true;
    case 11: *out = of_integers<uint8_t>(data, n); return true;
    case 15:
      *out = of_floats<float>(n, 0x1p-126, [=](size_t i, size_t count, float* room) {
        torchsan_native::from_bfloat16(half + i, count, room);
        return static_cast<const float*>(room);
      });
      return true;
    default: return false;
  }
}

// Whether the elements lie side by side, in whatever order of dimensions.
inline bool side_by_side(int64_t dim, const int64_t* sizes, const int64_t* strides) {
  int64_t wanted = 1, left = 0;
  for (int64_t i = 0; i < dim; ++i) {
    left += sizes[i] != 1;
  }
  for (int64_t i = 0; i < dim && left > 0; ++i) {
    if (sizes[i] != 1 && strides[i] == wanted) {
      wanted *= sizes[i];
      --left;
      i = -1;
    }
  }
  return left == 0;
}

// One call of the model. `log` is null while recording is off.
class Call {
 public:
  explicit Call(const char* program) : log(current_log(program)) {
    if (log != nullptr) {
      static std::atomic<uint64_t> calls{0};
      number_ = calls++;
      log->write(CALL, head());
    }
  }
  ~Call() {
    if (log != nullptr) {
      log->write(END, head());
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void launch(int32_t site, Phase phase, const char* kernel) {
    log->write(LAUNCH, head().put(site).put<uint8_t>(phase).put_text(kernel));
  }

  void number(int32_t site, const char* name, double value) {
    log->write(NUMBER, head().put(site).put_text(name).put(value));
  }

  void tensor(int32_t site, Phase phase, Level level, const char* name, AtenTensorHandle handle) {
    void* data = nullptr;
    int64_t *sizes = nullptr, *strides = nullptr, dim = 0, offset = 0, width = 0;
    int32_t dtype = 0, device = 0, index = 0;
    if (handle == nullptr || aoti_torch_get_dim(handle, &dim) || aoti_torch_get_dtype(handle, &dtype) ||
        aoti_torch_get_device_type(handle, &device) || aoti_torch_get_device_index(handle, &index) ||
        aoti_torch_get_sizes(handle, &sizes) || aoti_torch_get_strides(handle, &strides) ||
        aoti_torch_get_storage_offset(handle, &offset) || aoti_torch_get_data_ptr(handle, &data)) {
      return;
    }
    Bytes body = head();
    body.put(site).put<uint8_t>(phase).put_text(name);
    body.put(dtype).put(device).put(index).put(offset).put(static_cast<uint32_t>(dim));
    int64_t count = 1, span = 1;
    for (int64_t i = 0; i < dim; ++i) {
      body.put(sizes[i]).put(strides[i]);
      count *= sizes[i];
      span += (sizes[i] - 1) * strides[i];
    }
    span = count == 0 ? 0 : span;
    width = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
    const bool readable = device == aoti_torch_device_type_cpu() && data != nullptr && width > 0;
    if (readable && level == PRINT) {
      statistics(body, static_cast<const char*>(data), dtype, width, dim, sizes, strides, count);
      log->write(TENSOR, body);
    } else if (readable && level == SAVE) {
      body.put<uint8_t>(2).put<uint64_t>(static_cast<uint64_t>(span * width));
      log->write(TENSOR, body, data, static_cast<uint64_t>(span * width));
    } else {
      log->write(TENSOR, body.put<uint8_t>(0));
    }
  }

  Log* const log;

 private:
  Bytes head() const { return Bytes().put(number_).put(thread_number()).put(now()); }

  static void statistics(Bytes& body, const char* data, int32_t dtype, int64_t width, int64_t dim,
                         const int64_t* sizes, const int64_t* strides, int64_t count) {
    const auto n = static_cast<size_t>(count);
    const size_t pieces = (n + PIECE - 1) / PIECE;
    const bool gathered = !side_by_side(dim, sizes, strides);
    std::vector<Statistics> parts(pieces);
    std::atomic<bool> known{true};
#pragma omp parallel for if (pieces > 8)
    for (size_t piece = 0; piece < pieces; ++piece) {
      const size_t start = piece * PIECE, size = std::min(PIECE, n - start);
      std::string copy;
      const char* from = data + start * width;
      if (gathered) {
        copy = gather(data, width, dim, sizes, strides, start, size);
        from = copy.data();
      }
      if (!of_elements(from, size, dtype, &parts[piece])) {
        known = false;
      }
    }
    if (!known) {
      body.put<uint8_t>(0);
      return;
    }
    Statistics s;
    for (const Statistics& part : parts) {
      s.add(part);
    }
    body.put<uint8_t>(1).put(s.nan).put(s.posinf).put(s.neginf).put(s.zeros).put(s.finite);
    body.put(s.low).put(s.high).put(s.mean).put(s.finite > 0 ? std::sqrt(s.square / s.finite) : 0.0);
  }

  // Copies of some elements, in order.
  static std::string gather(const char* data, int64_t width, int64_t dim, const int64_t* sizes, const int64_t* strides,
                            size_t start, size_t size) {
    std::string copy(size * width, '\0');
    for (size_t n = 0; n < size; ++n) {
      auto rest = static_cast<int64_t>(start + n);
      int64_t where = 0;
      for (int64_t i = dim - 1; i >= 0; --i) {
        where += rest % sizes[i] * strides[i];
        rest /= sizes[i];
      }
      std::memcpy(&copy[n * width], data + where * width, width);
    }
    return copy;
  }

  uint64_t number_ = 0;
};

}  // namespace torchsan_recorder
}  // namespace
