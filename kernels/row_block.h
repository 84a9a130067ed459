// A part of a flat array: a matrix, some columns of one, or neighbouring elements as one row.
#pragma once
#include <algorithm>
#include <cstddef>

// Rows of neighbouring elements, `stride` apart, the first at `offset`.
struct RowBlock {
  size_t offset, rows, columns, stride;
  size_t size() const { return rows * columns; }
  size_t before(size_t i) const {  // how many of its elements lie before element i of the array
    if (i <= offset) return 0;
    size_t row = (i - offset) / stride, column = (i - offset) % stride;
    return row >= rows ? size() : row * columns + std::min(column, columns);
  }
};
