// Arguments of the batch-norm functions on the CPU: the tensors of a call, how they are checked, and the values of channels.
#pragma once
#include <initializer_list>
#include <new>
#include <vector>

#include "matrix.h"
#include "tensor.h"
#include "vectors.h"

struct Arguments {               // as in batch_norm.py
    const int64_t* descriptors;  // of the tensors in the order of `Column`, without those that are not given
    int64_t length;              // of `descriptors`, in numbers
    int64_t given;               // bit i: the i-th of `Column` is there
    int64_t threads;
    double number;               // statistics: the batch's share of the running ones
    double epsilon;
};

enum Column { X, GRADIENT, WRITTEN, BATCHES, MEAN = BATCHES, SECOND, WEIGHT, BIAS, FIRST_SUM, SECOND_SUM, COLUMNS };
// Columns before BATCHES are batches [N, C, H, W], the others are fp32 [C].

struct Tensors {
    Tensor at[COLUMNS];
    int64_t dtype, given;

    bool has(Column column) const { return given >> column & 1; }
    template <class Element>
    Element* batch(Column column) const {
        return has(column) ? at[column].as<Element>() : nullptr;
    }
    float* values(Column column) const { return batch<float>(column); }
    Matrix matrix() const { return {at[X].sizes[0] * at[X].sizes[2] * at[X].sizes[3], at[X].sizes[1]}; }
};

static Reason fits(Tensors& tensors, Column column) {
    Tensor &tensor = tensors.at[column], &x = tensors.at[X];
    if (column >= BATCHES) {
        if (const Reason reason = checked(tensor, FLOAT32)) return reason;
        return tensor.dims == 1 && tensor.count == x.sizes[1] ? FINE : WRONG_SHAPE;
    }
    if (column == X && tensor.dtype != FLOAT32 && tensor.dtype != BFLOAT16) return WRONG_DTYPE;
    if (const Reason reason = checked(tensor, Dtype(x.dtype))) return reason;
    if (tensor.dims != 4 || !tensor.count || !same_sizes(x, tensor)) return WRONG_SHAPE;
    return is_channels_last(tensor) ? FINE : OTHER_LAYOUT;
}

// Reads the tensors, of which those in `needed` have to be there and those in `written` are written; returns 0 or what is refused.
static int64_t read(const Arguments& a, int64_t needed, int64_t allowed, int64_t written, Tensors& tensors) {
    if ((a.given & needed) != needed || (a.given & ~allowed)) return refusal(WRONG_ARGUMENTS);
    Reader reader{a.descriptors, a.length, __builtin_popcountll(a.given)};
    std::vector<Span> spans;
    tensors.given = a.given;
    for (int64_t column = 0, place = 0; column < COLUMNS; column++) {
        if (!(a.given >> column & 1)) continue;
        Tensor& tensor = tensors.at[column];
        if (!reader.next(tensor)) return refusal(WRONG_ARGUMENTS, 0, place);
        if (const Reason reason = fits(tensors, Column(column))) return refusal(reason, 0, place);
        const int64_t bytes = tensor.count * (tensor.dtype == BFLOAT16 ? 2 : 4);
        if (bytes) spans.push_back({tensor.data, tensor.data + bytes, bool(written >> column & 1), 0, place});
        place++;
    }
    if (!reader.done()) return refusal(WRONG_ARGUMENTS);
    tensors.dtype = tensors.at[X].dtype;
    return overlap(spans);
}

// Values of channels, in memory that is filled up to whole vectors.
struct Affine {
    std::vector<float> memory;
    float *mean, *scale, *shift, *average, *slope;

    explicit Affine(const Tensors& tensors) {
        const int64_t channels = tensors.at[X].sizes[1], apart = (channels + WIDTH - 1) / WIDTH * WIDTH;
        memory.resize(5 * apart);
        mean = memory.data(), scale = mean + apart, shift = scale + apart, average = shift + apart, slope = average + apart;
        const float *weight = tensors.values(WEIGHT), *bias = tensors.values(BIAS), *inverse = tensors.values(SECOND);
        for (int64_t c = 0; c < channels; c++) {
            mean[c] = tensors.values(MEAN)[c];
            scale[c] = weight ? inverse[c] * weight[c] : inverse[c];
            shift[c] = bias ? bias[c] : 0.0f;
        }
    }
};

static inline Floats relu(Floats values) { return values <= 0.0f ? Floats{} : values; }  // NaN stays

constexpr int64_t bits(std::initializer_list<Column> columns) {
    int64_t result = 0;
    for (const Column column : columns) result |= int64_t(1) << column;
    return result;
}

static int64_t guarded(int64_t (*work)(const Arguments&), const Arguments* arguments) {
    if (!arguments || arguments->threads < 1) return refusal(WRONG_ARGUMENTS);
    try {
        return work(*arguments);
    } catch (const std::bad_alloc&) {
        return refusal(OUT_OF_MEMORY);
    }
}
