// Max pooling of images in channels_last, forward and backward. Forward also writes which element of its window each result is, in a byte.
// Backward goes over the image: each pixel adds up, in fp32, the gradients of the windows whose result it is, and is written once. So
// nothing is scattered, and no bit depends on the number of threads. Tensors that do not fit together are refused (tensor.h).
#include <algorithm>
#include <limits>
#include <new>

#include "tensor.h"
#include "vectors.h"

struct Arguments {               // as in max_pool.py
    const int64_t* descriptors;  // of image, pooled and offsets: [N, C, H, W], [N, C, OH, OW] and bytes of that shape
    int64_t length;              // of `descriptors`, in numbers
    int64_t kernel[2], stride[2], padding[2];
    int64_t threads;
};

constexpr int64_t LARGEST_WINDOW = 256;  // elements: a place in it is a byte

struct Range {
    int64_t first, end;
};

struct Call {
    Tensor image, pooled, offsets;
    int64_t samples, channels, height, width, pooled_height, pooled_width, threads;
    const int64_t *kernel, *stride, *padding;

    // The windows over each row or column of the image, by their numbers.
    std::vector<Range> windows(int side, int64_t size, int64_t count) const {
        std::vector<Range> result(size);
        for (int64_t at = 0; at < size; at++) {
            const int64_t from = at + padding[side] - kernel[side] + 1, to = (at + padding[side]) / stride[side] + 1;
            result[at] = {from <= 0 ? 0 : (from + stride[side] - 1) / stride[side], std::min(count, to)};
        }
        return result;
    }
};

static inline Words first_bytes(const uint8_t* from, All) {
    Bytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return widened(bytes);
}
static inline Words first_bytes(const uint8_t* from, First part) {
    uint8_t bytes[WIDTH] = {};
    std::memcpy(bytes, from, part.count);
    return first_bytes(bytes, All{});
}
static inline void store_bytes(uint8_t* to, Words values, All) {
    const Bytes bytes = __builtin_convertvector(__builtin_convertvector(values, Halves), Bytes);
    std::memcpy(to, &bytes, sizeof bytes);
}
static inline void store_bytes(uint8_t* to, Words values, First part) {
    const Bytes bytes = __builtin_convertvector(__builtin_convertvector(values, Halves), Bytes);
    std::memcpy(to, &bytes, part.count);
}

// Elements that belong together: where each is in memory, and its place in the window.
struct Members {
    int64_t count = 0, at[LARGEST_WINDOW];
    uint32_t place[LARGEST_WINDOW];

    void add(int64_t where, int64_t number) { at[count] = where, place[count++] = uint32_t(number); }
};

// The largest value of a window, the first of equal ones; NaN is larger than any, and the last NaN counts, as in torch.
template <class Element>
static void forward(const Call& c) {
    const int64_t rows = c.samples * c.pooled_height, channels = c.channels;
#pragma omp parallel for num_threads(int(c.threads)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t sample = row / c.pooled_height, top = row % c.pooled_height * c.stride[0] - c.padding[0];
        const int64_t first_y = std::max<int64_t>(0, -top), end_y = std::min(c.kernel[0], c.height - top);
        const Element* image = c.image.as<Element>() + sample * c.height * c.width * channels;
        Element* pooled = c.pooled.as<Element>() + row * c.pooled_width * channels;
        uint8_t* offsets = c.offsets.as<uint8_t>() + row * c.pooled_width * channels;
        for (int64_t column = 0; column < c.pooled_width; column++, pooled += channels, offsets += channels) {
            const int64_t left = column * c.stride[1] - c.padding[1];
            const int64_t first_x = std::max<int64_t>(0, -left), end_x = std::min(c.kernel[1], c.width - left);
            Members window;
            for (int64_t y = first_y; y < end_y; y++)
                for (int64_t x = first_x; x < end_x; x++)
                    window.add(((top + y) * c.width + left + x) * channels, y * c.kernel[1] + x);
            in_vectors(0, channels, [=, &window](int64_t channel, auto all) {
                Floats largest = Floats{} - std::numeric_limits<float>::infinity();
                Words place = Words{} + window.place[0];
                for (int64_t k = 0; k < window.count; k++) {
                    const Floats value = load(image + window.at[k] + channel, all);
                    const auto taken = (value > largest) | (value != value);
                    largest = taken ? value : largest;
                    place = taken ? Words{} + window.place[k] : place;
                }
                store_exact(pooled + channel, largest, all);
                store_bytes(offsets + channel, place, all);
            });
        }
    }
}

template <class Element>
static void backward(const Call& c) {
    const int64_t rows = c.samples * c.height, channels = c.channels, pooled_row = c.pooled_width * channels;
    const std::vector<Range> columns = c.windows(1, c.width, c.pooled_width), lines = c.windows(0, c.height, c.pooled_height);
#pragma omp parallel for num_threads(int(c.threads)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t sample = row / c.height, y = row % c.height;
        const Element* gradients = c.pooled.as<Element>() + sample * c.pooled_height * pooled_row;
        const uint8_t* offsets = c.offsets.as<uint8_t>() + sample * c.pooled_height * pooled_row;
        Element* pixel = c.image.as<Element>() + row * c.width * channels;
        for (int64_t x = 0; x < c.width; x++, pixel += channels) {
            Members windows;
            for (int64_t i = lines[y].first; i < lines[y].end; i++)
                for (int64_t j = columns[x].first; j < columns[x].end; j++) {
                    const int64_t inside_y = y + c.padding[0] - i * c.stride[0], inside_x = x + c.padding[1] - j * c.stride[1];
                    windows.add(i * pooled_row + j * channels, inside_y * c.kernel[1] + inside_x);
                }
            in_vectors(0, channels, [=, &windows](int64_t channel, auto all) {
                Floats sum = {};
                for (int64_t k = 0; k < windows.count; k++) {
                    const Floats gradient = load(gradients + windows.at[k] + channel, all);
                    sum += first_bytes(offsets + windows.at[k] + channel, all) == windows.place[k] ? gradient : Floats{};
                }
                store(pixel + channel, sum, all);
            });
        }
    }
}

// Reads the tensors into the call; `written` are the columns that are written, as bits.
static int64_t read(const Arguments& a, int64_t written, Call& c) {
    Reader reader{a.descriptors, a.length, 3};
    Tensor* const tensors[] = {&c.image, &c.pooled, &c.offsets};
    std::vector<Span> spans;
    for (int64_t column = 0; column < 3; column++) {
        Tensor& tensor = *tensors[column];
        if (!reader.next(tensor)) return refusal(WRONG_ARGUMENTS, 0, column);
        if (!column && tensor.dtype != FLOAT32 && tensor.dtype != BFLOAT16) return refusal(WRONG_DTYPE, 0, column);
        const Dtype dtype = column == 2 ? UINT8 : Dtype(c.image.dtype);
        if (const Reason reason = checked(tensor, dtype)) return refusal(reason, 0, column);
        if (tensor.dims != 4 || !tensor.count) return refusal(WRONG_SHAPE, 0, column);
        if (!is_channels_last(tensor)) return refusal(OTHER_LAYOUT, 0, column);
        spans.push_back({tensor.data, tensor.data + tensor.count * element_bytes(dtype), bool(written >> column & 1), 0, column});
    }
    if (!reader.done()) return refusal(WRONG_ARGUMENTS);
    c.samples = c.image.sizes[0], c.channels = c.image.sizes[1], c.height = c.image.sizes[2], c.width = c.image.sizes[3];
    c.pooled_height = c.pooled.sizes[2], c.pooled_width = c.pooled.sizes[3], c.threads = a.threads;
    c.kernel = a.kernel, c.stride = a.stride, c.padding = a.padding;
    if (c.pooled.sizes[0] != c.samples || c.pooled.sizes[1] != c.channels) return refusal(WRONG_SHAPE, 0, 1);
    if (!same_sizes(c.pooled, c.offsets)) return refusal(WRONG_SHAPE, 0, 2);
    for (int side = 0; side < 2; side++) {
        const int64_t size = c.image.sizes[2 + side], last = c.pooled.sizes[2 + side] - 1;
        if (a.kernel[side] < 1 || a.kernel[side] > LARGEST_WINDOW || a.stride[side] < 1 || a.padding[side] < 0 || a.padding[side] * 2 > a.kernel[side])
            return refusal(WRONG_ARGUMENTS);
        int64_t begin;  // of the last window: it has to begin inside the image or its padding on the left
        if (__builtin_mul_overflow(last, a.stride[side], &begin) || begin - a.padding[side] >= size) return refusal(WRONG_SHAPE, 0, 1);
    }
    if (a.kernel[0] * a.kernel[1] > LARGEST_WINDOW) return refusal(WRONG_ARGUMENTS);
    return overlap(spans);
}

static int64_t call(const Arguments* arguments, int64_t written, void (*of_floats)(const Call&), void (*of_halves)(const Call&)) {
    if (!arguments || arguments->threads < 1) return refusal(WRONG_ARGUMENTS);
    try {
        Call c;
        if (const int64_t code = read(*arguments, written, c)) return code;
        (c.image.dtype == FLOAT32 ? of_floats : of_halves)(c);
    } catch (const std::bad_alloc&) {
        return refusal(OUT_OF_MEMORY);
    }
    return FINE;
}

extern "C" int64_t max_pool_forward(const Arguments* arguments) { return call(arguments, 6, forward<float>, forward<BFloat16>); }

extern "C" int64_t max_pool_backward(const Arguments* arguments) { return call(arguments, 1, backward<float>, backward<BFloat16>); }
