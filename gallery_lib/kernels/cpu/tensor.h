// Tensors as Python describes them (runtime/cpp.py), and what they must be for a loop over their memory to be safe. Each check is
// per tensor. What is refused comes back as a number that holds the reason, the row and the column; nothing was written then.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

enum Reason : int64_t {  // as in runtime/cpp.py
    FINE,
    WRONG_DTYPE,
    WRONG_SHAPE,
    NOT_DENSE,
    OTHER_LAYOUT,
    TOO_LITTLE_MEMORY,
    NULL_POINTER,
    UNALIGNED,
    OVERLAP,
    WRONG_ARGUMENTS,
    OUT_OF_MEMORY,
};
enum Dtype : int64_t { OTHER, FLOAT32, UINT8, BFLOAT16, INT64, INT32 };  // as in runtime/cpp.py
constexpr int64_t MOST_DIMENSIONS = 64;                                  // torch's own limit

static inline int64_t element_bytes(int64_t dtype) {  // of a dtype that has a name here
    return dtype == INT64 ? 8 : dtype == FLOAT32 || dtype == INT32 ? 4 : dtype == BFLOAT16 ? 2 : 1;
}

static inline int64_t refusal(Reason reason, int64_t row = 0, int64_t column = 0) {
    return reason + (column << 8) + (row << 16);
}

struct Tensor {
    char* data;
    int64_t bytes;  // that the storage has from `data` on
    int64_t dtype, dims;
    const int64_t *sizes, *strides;
    int64_t count;  // elements: the product of sizes, once `measure` was called

    template <class Element>
    Element* as() const {
        return reinterpret_cast<Element*>(data);
    }
};

// The tensors of one call as columns of numbers, one column after the other: where each starts, bytes of its storage, elements
// before it there, dtype, dimensions; then the sizes of all tensors, then their strides.
struct Reader {
    const int64_t* columns;
    int64_t length, tensors;  // numbers in `columns`; tensors described
    int64_t at = 0, dims_before = 0;

    bool next(Tensor& tensor) {
        constexpr int64_t FIXED = 5;
        if (!columns || tensors < 0 || length / FIXED < tensors || at >= tensors) return false;
        const int64_t* of_tensor = columns + at++;
        const int64_t of_all = length - FIXED * tensors, dims = of_tensor[4 * tensors];
        if (dims < 0 || dims > MOST_DIMENSIONS || of_all / 2 - dims_before < dims) return false;
        const int64_t dtype = of_tensor[3 * tensors];
        int64_t before;
        tensor.data = reinterpret_cast<char*>(of_tensor[0]);
        tensor.dtype = dtype, tensor.dims = dims, tensor.count = 0;
        if (__builtin_mul_overflow(of_tensor[2 * tensors], element_bytes(dtype), &before) || before < 0) return false;
        tensor.bytes = of_tensor[tensors] - before;
        tensor.sizes = columns + FIXED * tensors + dims_before, tensor.strides = tensor.sizes + of_all / 2;
        dims_before += dims;
        return true;
    }

    bool done() const { return at == tensors && length == 5 * tensors + 2 * dims_before; }
};

static inline bool measure(Tensor& tensor) {
    tensor.count = 1;
    for (int64_t i = 0; i < tensor.dims; i++)
        if (tensor.sizes[i] < 0 || __builtin_mul_overflow(tensor.count, tensor.sizes[i], &tensor.count)) return false;
    return true;
}

// Whether the elements fill the memory that they span, each place once, in any order of dimensions.
static inline bool is_dense(const Tensor& tensor) {
    int64_t order[MOST_DIMENSIONS], count = 0;
    for (int64_t i = tensor.dims - 1; i >= 0; i--) {  // from the last: contiguous tensors are in order already
        if (tensor.sizes[i] == 1) continue;
        int64_t place = count++;
        for (; place > 0 && tensor.strides[order[place - 1]] > tensor.strides[i]; place--) order[place] = order[place - 1];
        order[place] = i;
    }
    int64_t expected = 1;
    for (int64_t i = 0; i < count; expected *= tensor.sizes[order[i++]])
        if (tensor.strides[order[i]] != expected) return false;
    return true;
}

static inline bool same_sizes(const Tensor& one, const Tensor& other) {
    return one.dims == other.dims && std::equal(one.sizes, one.sizes + one.dims, other.sizes);
}

// Of tensors of the same sizes; the stride of a dimension of size 1 means nothing.
static inline bool same_strides(const Tensor& one, const Tensor& other) {
    for (int64_t i = 0; i < one.dims; i++)
        if (one.sizes[i] > 1 && one.strides[i] != other.strides[i]) return false;
    return true;
}

// Whether [N, C, H, W] lies in memory as [N, H, W, C]; the stride of a dimension of size 1 means nothing.
static inline bool is_channels_last(const Tensor& tensor) {
    int64_t expected = 1;
    for (const int64_t dimension : {1, 3, 2, 0}) {
        if (tensor.sizes[dimension] != 1 && tensor.strides[dimension] != expected) return false;
        expected *= tensor.sizes[dimension];
    }
    return true;
}

// Whether the elements of rows lie one after the other, and the rows too; the stride of a dimension of size 1 means nothing.
static inline bool is_contiguous(const Tensor& tensor) {
    int64_t expected = 1;
    for (int64_t i = tensor.dims - 1; i >= 0; expected *= tensor.sizes[i--])
        if (tensor.sizes[i] != 1 && tensor.strides[i] != expected) return false;
    return true;
}

// A dense tensor with all of its memory; one without elements needs none.
static inline Reason checked(Tensor& tensor, Dtype dtype) {
    if (tensor.dtype != dtype) return WRONG_DTYPE;
    if (!measure(tensor)) return WRONG_SHAPE;
    if (!tensor.count) return FINE;
    if (!tensor.data) return NULL_POINTER;
    if (!is_dense(tensor)) return NOT_DENSE;
    if (reinterpret_cast<uintptr_t>(tensor.data) % element_bytes(dtype)) return UNALIGNED;
    return tensor.bytes / element_bytes(dtype) < tensor.count ? TOO_LITTLE_MEMORY : FINE;
}

struct Span {
    const char *begin, *end;
    bool written;
    int64_t row, column;
};

// Refuses memory that is written and is another tensor's as well. Memory that is only read may be shared.
static inline int64_t overlap(std::vector<Span>& spans) {
    std::sort(spans.begin(), spans.end(), [](const Span& one, const Span& other) { return one.begin < other.begin; });
    const char *written = nullptr, *touched = nullptr;  // the furthest ends so far
    for (const Span& span : spans) {
        if (span.begin < written || (span.written && span.begin < touched)) return refusal(OVERLAP, span.row, span.column);
        touched = std::max(touched, span.end);
        if (span.written) written = std::max(written, span.end);
    }
    return FINE;
}
