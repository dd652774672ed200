// Runs the threads of a threadgroup as fibers of one OS thread: a barrier or a SIMD-group operation hands over to the next fiber. The threads of
// a kernel that has neither are calls.
//
// It is stricter than a GPU. These are errors, with the thread and the place named: lanes that meet at different places of a source, a barrier
// that some threads of the group have left, an access behind a buffer's end. A seed chooses the order of threads and groups, and a byte what
// threadgroup memory holds before each group, so that a missing barrier or an uninitialised read shows as results that differ between seeds.
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

struct tl_thread { unsigned lane, simd, index, group[3], groups[3], size[3], at[3]; };
typedef void (*Entry)(const tl_thread*, void* const*);
// What a dispatch needs; `tests/msl/kernel.rs` has the same.
struct tl_dispatch { Entry entry; void* const* buffers; uint64_t seed; unsigned groups[3], size[3], room, fill, meets; };

extern "C" void tl_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl tl_switch
.type tl_switch,@function
tl_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size tl_switch,.-tl_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl tl_switch
tl_switch:
  stp x29, x30, [sp, #-160]!
  stp x19, x20, [sp, #16]; stp x21, x22, [sp, #32]; stp x23, x24, [sp, #48]; stp x25, x26, [sp, #64]; stp x27, x28, [sp, #80]
  stp d8, d9, [sp, #96]; stp d10, d11, [sp, #112]; stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144]
  mov x9, sp; str x9, [x0]; mov sp, x1
  ldp x19, x20, [sp, #16]; ldp x21, x22, [sp, #32]; ldp x23, x24, [sp, #48]; ldp x25, x26, [sp, #64]; ldp x27, x28, [sp, #80]
  ldp d8, d9, [sp, #96]; ldp d10, d11, [sp, #112]; ldp d12, d13, [sp, #128]; ldp d14, d15, [sp, #144]
  ldp x29, x30, [sp], #160
  ret
)");
#else
#error "fibers are written for x86-64 and aarch64"
#endif

namespace {
constexpr size_t STACK = 256 << 10;
// Stacks begin at different places of their pages: at one place all would compete for the same few lines of the caches.
constexpr unsigned COLOURS = 128, COLOUR = 192;
constexpr unsigned MAX_THREADS = 1024, LANES = 32;
// Buffers up to this size are copied in front of a page that must not be touched.
constexpr size_t GUARDED = 1 << 20;
constexpr unsigned SLOTS = 32;
constexpr size_t ROOM = 64 << 10;

enum State : uint8_t { Ready, AtBarrier, AtSimdBarrier, AtExchange, Done };
const char* const STATES[] = {"runs", "waits at a barrier", "waits at a SIMD-group barrier", "waits in a SIMD-group operation", "has left"};


char* reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : (char*)p;
}

// Memory that ends at a page which faults.
struct Guarded {
  char* start = nullptr; char* end = nullptr;
  bool make(size_t bytes) {
    size_t page = sysconf(_SC_PAGESIZE);
    if (!start) {
      start = reserve(bytes + page);
      if (!start || mprotect(start + bytes, page, PROT_NONE)) return false;
      end = start + bytes;
    }
    return true;
  }
  ~Guarded() { if (start) munmap(start, end - start + sysconf(_SC_PAGESIZE)); }
};

// What one OS thread runs its groups with.
struct Group {
  void* sp[MAX_THREADS];
  State state[MAX_THREADS];
  const void* site[MAX_THREADS];
  tl_thread threads[MAX_THREADS];
  char* stacks[MAX_THREADS];
  uint64_t together[MAX_THREADS / LANES];
  unsigned made = 0, count = 0, now = 0;
  // The lanes of the SIMD-group that runs in this round's order, and how many have had their turn.
  unsigned line[LANES], turns = 0, lanes = 0;
  void* home = nullptr;
  const tl_dispatch* dispatch = nullptr;
  char slots[MAX_THREADS / LANES][2][LANES][16];
  uint8_t parity[MAX_THREADS];
  Guarded buffers[SLOTS], room;
  size_t lengths[SLOTS] = {};
  char* shared = nullptr;
  sigjmp_buf trap;
  char error[512];
  ~Group() { for (unsigned i = 0; i < made; i++) munmap(stacks[i], STACK); }
};
// Every hand-over reads it: at a fixed place, not by a call.
__attribute__((tls_model("initial-exec"))) thread_local Group* g = nullptr;

struct Owner { Group* group = nullptr; ~Owner() { delete group; } };
thread_local Owner owner;

Group* group() {
  if (!g) g = owner.group = new Group;
  return g;
}

void* fresh(char* top, void (*f)()) {
#if defined(__x86_64__)
  void** sp = (void**)((uintptr_t)top & ~15ull);
  *--sp = nullptr; *--sp = (void*)f;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
#else
  void** sp = (void**)(((uintptr_t)top & ~15ull) - 160);
  memset(sp, 0, 160);
  sp[1] = (void*)f;
#endif
  return sp;
}

// Goes on with the next lane of this round, or back to who began the round.
void hand_over(unsigned mine) {
  Group* q = g;
  while (q->turns < q->lanes) {
    unsigned next = q->line[q->turns++];
    if (q->state[next] == Ready) {
      q->now = next;
      tl_switch(&q->sp[mine], q->sp[next]);
      return;
    }
  }
  tl_switch(&q->sp[mine], q->home);
}

void body() {
  unsigned mine = g->now;
  g->dispatch->entry(&g->threads[mine], g->dispatch->buffers);
  g->state[mine] = Done;
  hand_over(mine);
  abort();
}

bool fail(const char* what, unsigned a, unsigned b) {
  const tl_thread& t = g->threads[a];
  snprintf(g->error, sizeof g->error, "%s: thread %u %s, thread %u %s, in group %u,%u,%u", what, a, STATES[g->state[a]], b, STATES[g->state[b]],
           t.group[0], t.group[1], t.group[2]);
  return false;
}

// Ends a dispatch from inside of a thread, for a reason.
[[noreturn]] void stop(const char* what) {
  const tl_thread& t = g->threads[g->now];
  snprintf(g->error, sizeof g->error, "%s: thread %u of group %u,%u,%u", what, t.index, t.group[0], t.group[1], t.group[2]);
  siglongjmp(g->trap, 1);
}

void wait_as(State s, const void* site) {
  if (!g->dispatch->meets) stop("threads wait for each other in a kernel in which none was to wait");
  unsigned mine = g->now;
  g->state[mine] = s;
  g->site[mine] = site;
  hand_over(mine);
}

constexpr unsigned NOBODY = ~0u;

// Runs one SIMD-group until all its lanes are done or wait at the threadgroup's barrier.
bool run_simd(unsigned first, unsigned end, uint64_t seed) {
  Group* q = g;
  unsigned n = end - first, start = unsigned(seed >> 1) % n;
  for (unsigned k = 0; k < n; k++) {
    unsigned turn = (seed & 1 ? n - 1 - k : k) + start;
    q->line[k] = first + (turn < n ? turn : turn - n);
  }
  q->lanes = n;
  for (;;) {
    for (q->turns = 0; q->turns < n;) {
      unsigned i = q->line[q->turns++];
      if (q->state[i] != Ready) continue;
      q->now = i;
      tl_switch(&q->home, q->sp[i]);
    }
    unsigned one = NOBODY, other = NOBODY;
    // Who took part: later some of these lanes may be done while others still look at what was exchanged.
    uint64_t together = 0;
    for (unsigned i = first; i < end; i++) {
      if (q->state[i] == Done) continue;
      together |= 1ull << (i - first);
      if (one == NOBODY) one = i;
      else if (q->state[i] != q->state[one] || (q->state[i] != AtBarrier && q->site[i] != q->site[one])) other = i;
    }
    if (one == NOBODY) return true;
    if (other != NOBODY) return fail("lanes of a SIMD-group wait at different places", one, other);
    if (q->state[one] == AtBarrier) return true;
    q->together[first / LANES] = together;
    for (unsigned i = first; i < end; i++)
      if (q->state[i] != Done) q->state[i] = Ready;
  }
}

bool run_group(uint64_t seed) {
  for (;;) {
    unsigned simds = (g->count + LANES - 1) / LANES;
    for (unsigned k = 0; k < simds; k++) {
      unsigned s = unsigned((k + (seed >> 6)) % simds);
      if (!run_simd(LANES * s, LANES * s + LANES < g->count ? LANES * s + LANES : g->count, seed)) return false;
    }
    unsigned waiting = NOBODY, done = NOBODY;
    for (unsigned i = 0; i < g->count; i++) (g->state[i] == Done ? done : waiting) = i;
    if (waiting == NOBODY) return true;
    if (done != NOBODY) return fail("a thread has left the kernel while another waits at a barrier", waiting, done);
    for (unsigned i = 0; i < g->count; i++) {
      if (g->site[i] != g->site[0]) return fail("threads wait at different barriers", 0, i);
      g->state[i] = Ready;
    }
  }
}

// The threads of a group one after the other, none of which waits.
void call_each() {
  Group* q = g;
  for (q->now = 0; q->now < q->count; q->now++) q->dispatch->entry(&q->threads[q->now], q->dispatch->buffers);
}

struct sigaction before[65];

// A fault of a kernel ends its dispatch; any other is as it was before.
void on_fault(int signal, siginfo_t* info, void*) {
  char* at = (char*)info->si_addr;
  size_t page = sysconf(_SC_PAGESIZE);
  if (g && g->dispatch) {
    if (signal == SIGFPE) stop("an integer division by zero");
    if (at >= g->room.end && at < g->room.end + page) stop("an access behind the end of threadgroup memory");
    for (unsigned n = 0; n < SLOTS; n++) {
      if (g->buffers[n].start && at >= g->buffers[n].end && at < g->buffers[n].end + page) {
        char what[128];
        snprintf(what, sizeof what, "an access %zu bytes behind the end of the memory of %zu bytes that was bound as number %u",
                 size_t(at - g->buffers[n].end), g->lengths[n], n);
        stop(what);
      }
    }
    for (unsigned i = 0; i < g->made; i++)
      if (at >= g->stacks[i] && at < g->stacks[i] + page) stop("a stack of more than 256 KiB");
    stop("an access to memory that is nobody's");
  }
  sigaction(signal, &before[signal], nullptr);
}

void listen() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE}) {
      struct sigaction a = {};
      a.sa_sigaction = on_fault;
      a.sa_flags = SA_SIGINFO | SA_ONSTACK;
      sigaction(signal, &a, &before[signal]);
    }
  });
}

bool stacks(unsigned count) {
  size_t page = sysconf(_SC_PAGESIZE);
  for (; g->made < count; g->made++) {
    char* stack = reserve(STACK);
    if (!stack || mprotect(stack, page, PROT_NONE)) return false;
    g->stacks[g->made] = stack;
  }
  return true;
}

// What the threads of all groups of a grid have in common.
void begin_grid(const tl_dispatch& d) {
  for (unsigned i = 0; i < g->count; i++) {
    unsigned at[3] = {i % d.size[0], i / d.size[0] % d.size[1], i / d.size[0] / d.size[1]};
    g->threads[i] = {i % LANES, i / LANES, i, {}, {d.groups[0], d.groups[1], d.groups[2]}, {d.size[0], d.size[1], d.size[2]}, {at[0], at[1], at[2]}};
  }
}

void begin_group(const tl_dispatch& d, unsigned x, unsigned y, unsigned z) {
  memset(g->shared, d.fill, d.room);
  for (unsigned i = 0; i < g->count; i++) {
    unsigned* group = g->threads[i].group;
    group[0] = x, group[1] = y, group[2] = z;
  }
  if (!d.meets) return;
  for (unsigned i = 0; i < g->count; i++) {
    g->sp[i] = fresh(g->stacks[i] + STACK - i % COLOURS * COLOUR, body);
    g->state[i] = Ready;
    g->site[i] = nullptr;
    g->parity[i] = 0;
  }
}

bool run_grid(const tl_dispatch& d) {
  begin_grid(d);
  uint64_t seed = d.seed, total = uint64_t(d.groups[0]) * d.groups[1] * d.groups[2];
  for (uint64_t k = 0; k < total; k++) {
    uint64_t n = d.seed & 1 ? total - 1 - k : k;
    begin_group(d, unsigned(n % d.groups[0]), unsigned(n / d.groups[0] % d.groups[1]), unsigned(n / d.groups[0] / d.groups[1]));
    if (!d.meets) call_each();
    else if (!run_group(seed)) return false;
    if (d.seed > 1) seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  }
  return true;
}
} // namespace

extern "C" {
void tl_barrier(int simd, const void* site) { wait_as(simd ? AtSimdBarrier : AtBarrier, site); }

void* tl_exchange(const void* mine, unsigned bytes, const void* site) {
  unsigned i = g->now;
  uint8_t& turn = g->parity[i];
  char(*slots)[16] = g->slots[i / LANES][turn];
  turn ^= 1;
  if (bytes > 16) abort();
  memcpy(slots[i % LANES], mine, bytes);
  wait_as(AtExchange, site);
  return slots;
}

uint64_t tl_active() { return g->together[g->now / LANES]; }
tl_thread* tl_self() { return &g->threads[g->now]; }
char* tl_room() { return g->shared; }

// Memory of `bytes` bytes whose end, rounded up to 16, is followed by a page that faults; null for more than can be guarded.
char* tl_guarded(unsigned slot, size_t bytes) {
  size_t whole = (bytes + 15) / 16 * 16;
  if (slot >= SLOTS || whole > GUARDED || !group()->buffers[slot].make(GUARDED)) return nullptr;
  g->lengths[slot] = bytes;
  return g->buffers[slot].end - whole;
}

// Runs a grid. Returns null, or what went wrong, in memory that is valid until this thread's next run.
const char* tl_run(const tl_dispatch* d) {
  group();
  g->count = d->size[0] * d->size[1] * d->size[2];
  if (g->count == 0 || g->count > MAX_THREADS) return "a threadgroup of 0 or more than 1024 threads";
  if (d->room > ROOM) return "more than 64 KiB of threadgroup memory";
  if ((d->meets && !stacks(g->count)) || !g->room.make(ROOM)) return "no memory for threads";
  listen();
  g->shared = g->room.end - (d->room + 15) / 16 * 16;
  g->dispatch = d;
  g->error[0] = 0;
  bool fine = sigsetjmp(g->trap, 1) == 0 && run_grid(*d);
  g->dispatch = nullptr;
  return fine ? nullptr : g->error;
}

// What -fsanitize=undefined calls; the name of each says what was found.
#define TL_FOUND(name) \
  void __ubsan_handle_##name##_minimal() { stop("undefined behaviour, " #name); } \
  void __ubsan_handle_##name##_minimal_abort() { stop("undefined behaviour, " #name); }
TL_FOUND(type_mismatch) TL_FOUND(alignment_assumption) TL_FOUND(add_overflow) TL_FOUND(sub_overflow) TL_FOUND(mul_overflow)
TL_FOUND(negate_overflow) TL_FOUND(divrem_overflow) TL_FOUND(shift_out_of_bounds) TL_FOUND(out_of_bounds) TL_FOUND(builtin_unreachable)
TL_FOUND(missing_return) TL_FOUND(vla_bound_not_positive) TL_FOUND(float_cast_overflow) TL_FOUND(load_invalid_value)
TL_FOUND(invalid_builtin) TL_FOUND(function_type_mismatch) TL_FOUND(implicit_conversion) TL_FOUND(nonnull_arg) TL_FOUND(nonnull_return)
TL_FOUND(nullability_arg) TL_FOUND(nullability_return) TL_FOUND(pointer_overflow) TL_FOUND(cfi_check_fail)
}
