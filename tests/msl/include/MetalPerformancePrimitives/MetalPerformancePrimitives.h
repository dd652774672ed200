// A stand-in for Apple's Metal Performance Primitives, behind the one for <metal_tensor>: the product of two matrices, by one SIMD-group or by all of a
// threadgroup, whose results the threads keep. Written from public descriptions, and stricter than they are: all threads of the scope wait for each other
// at the operation, where those that come from another line are an error; only what is inside of an operand's extents is read. Which results a thread
// keeps is nobody's business on Apple's GPUs, and here every 17th. Sums are of 16 terms each, which are then added, so that they round otherwise than sums in order.
#pragma once
#include <metal_tensor>

namespace metal {
// Results of an operation, as the threads of its scope hold them: results `17 * (threads * i + own)` of all, counted around.
template <class T, int M, int N, size_t SIMDS> struct cooperative_tensor {
  static constexpr int all = M * N, capacity = (all + int(32 * SIMDS) - 1) / int(32 * SIMDS);
  T e[capacity];
  // Nothing is in them before an operation.
  cooperative_tensor() { memset(e, 0xFF, sizeof e); }
  static int own() { const tl_thread* t = tl_self(); return SIMDS == 1 ? t->lane : t->index; }
  static int place(int i) { return int(32 * SIMDS) * i + own(); }
  static constexpr uint16_t get_capacity() { return capacity; }
  bool is_valid_element(int i) const { return place(i) < all; }
  bool get_mask(int i) const { return is_valid_element(i); }
  // Column and row.
  array<int, 2> get_multidimensional_index(int i) const {
    int n = int(17l * place(i) % all);
    return {n % N, n / N};
  }
  T& operator[](int i) {
    if (i < 0 || i >= capacity) __ubsan_handle_out_of_bounds_minimal();
    return e[i];
  }
  // Each thread writes what it holds, but for what is outside of the tensor's extents.
  template <class E, class Kind> void store(const tensor<T, E, Kind>& to) const {
    for (int i = 0; i < capacity; i++) {
      if (!is_valid_element(i)) continue;
      auto at = get_multidimensional_index(i);
      if (at[0] < to.get_extent(0) && at[1] < to.get_extent(1)) to.at(at[0], at[1]) = e[i];
    }
  }
  template <class E, class Kind> void load(const tensor<T, E, Kind>& from) {
    for (int i = 0; i < capacity; i++) {
      if (!is_valid_element(i)) continue;
      auto at = get_multidimensional_index(i);
      if (at[0] < from.get_extent(0) && at[1] < from.get_extent(1)) e[i] = from.at(at[0], at[1]);
    }
  }
};
} // namespace metal

namespace mpp { namespace tensor_ops {
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m, int n, int k = int(metal::dynamic_extent), bool transpose_left = false, bool transpose_right = false,
                                bool relaxed_precision = false, mode matmul_mode = mode::multiply)
      : m(m), n(n), k(k), transpose_left(transpose_left), transpose_right(transpose_right), relaxed_precision(relaxed_precision), matmul_mode(matmul_mode) {}
};

template <matmul2d_descriptor D, class Scope> struct matmul2d {
  static constexpr size_t simds = Scope::count;
  static_assert(D.m * D.n % 17 != 0, "the stand-in counts results by 17");

  template <class L, class R, class T, class I = int> auto get_destination_cooperative_tensor() const {
    static_assert(std::is_same_v<typename L::element_type, half> && std::is_same_v<typename R::element_type, half> && std::is_same_v<T, float>,
                  "the stand-in multiplies halves, with sums in floats");
    return metal::cooperative_tensor<T, D.m, D.n, simds>();
  }

  // An operand's extent along the results' side, or along k. What is fixed must be there for all of the tile.
  template <int DIM, class X> static int side(const X& x, int tile) {
    if (X::extents_type::static_extent(DIM) != metal::dynamic_extent && tile > x.get_extent(DIM)) __ubsan_handle_out_of_bounds_minimal();
    return x.get_extent(DIM) < tile ? x.get_extent(DIM) : tile;
  }

  // Threads come together by the line of the call, after they have read the operands: a barrier that is missing before it still shows.
  template <class L, class R>
  void run(L& left, R& right, metal::cooperative_tensor<float, D.m, D.n, simds>& to, int line = __builtin_LINE()) const {
    const tl_thread* t = tl_self();
    // The scope is one SIMD-group, or the whole threadgroup.
    if (simds != 1 && t->size[0] * t->size[1] * t->size[2] != 32 * simds) __ubsan_handle_invalid_builtin_minimal();
    constexpr bool tl = D.transpose_left, tr = D.transpose_right, whole_k = D.k == int(metal::dynamic_extent);
    const int k = whole_k ? left.get_extent(tl ? 1 : 0) : D.k;
    // Without a size of its own the operation takes that of its operands, which must agree; with one, all of it must be there.
    if (whole_k && right.get_extent(tr ? 0 : 1) != k) __ubsan_handle_out_of_bounds_minimal();
    const int rows = side<tl ? 0 : 1>(left, D.m), columns = side<tr ? 1 : 0>(right, D.n);
    for (int i = 0; i < to.get_capacity(); i++) {
      if (!to.is_valid_element(i)) continue;
      auto at = to.get_multidimensional_index(i);
      float sum = D.matmul_mode == matmul2d_descriptor::mode::multiply ? 0.0f : to[i];
      for (int first = 0; first < k && at[1] < rows && at[0] < columns; first += 16) {
        float part = 0.0f;
        for (int j = first; j < k && j < first + 16; j++)
          part += float(tl ? left.at(at[1], j) : left.at(j, at[1])) * float(tr ? right.at(j, at[0]) : right.at(at[0], j));
        sum += part;
      }
      to[i] = sum;
    }
    tl_barrier(simds == 1, (const void*)(uintptr_t)line);
  }
};
}} // namespace mpp::tensor_ops
