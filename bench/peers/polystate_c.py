# SPDX-License-Identifier: Apache-2.0
"""libpolystate_c.so (c_api/polystate_c.h) on torch tensors."""
import ctypes

import torch

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
ACTIVATIONS = {None: 0, "silu": 1}
SCALARS = {"int": ctypes.c_int, "int64": ctypes.c_int64, "double": ctypes.c_double, "activation": ctypes.c_int}


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("extents", ctypes.c_int64 * 5), ("strides", ctypes.c_int64 * 5)]

    @classmethod
    def view(cls, tensor):
        if tensor is None:
            return cls()
        return cls(tensor.data_ptr(), (ctypes.c_int64 * 5)(*tensor.shape), (ctypes.c_int64 * 5)(*tensor.stride()))


class Exec(ctypes.Structure):
    _fields_ = [("stream", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t),
                ("batch_invariant", ctypes.c_int)]


class Operands(ctypes.Structure):
    """A struct of polystate_c.h. A subclass names its members in order and, of each tensor, the element type: "data"
    and "state" are the types of the whole call."""

    def __init__(self, **given):
        super().__init__()
        self.keep = given  # the tensors live as long as the struct that points to them
        dtypes = {"param": torch.float32, "index": torch.int32, "counters": torch.int64}
        for kind, witness in (("data", self.DATA), ("state", self.STATE)):
            if given.get(witness) is not None:
                dtypes[kind] = given[witness].dtype
        for name, value in given.items():
            kind = self.KINDS[name]
            if kind in SCALARS:
                setattr(self, name, ACTIVATIONS[value] if kind == "activation" else value)
                continue
            wanted = dtypes.setdefault(kind, torch.float32) if value is not None else None
            if value is not None and value.dtype != wanted:
                raise TypeError(f"{type(self).__name__}: {name} is {value.dtype}, expected {wanted}")
            setattr(self, name, Tensor.view(value))
        for name, kind in self.KINDS.items():
            if kind == "dtype":
                setattr(self, name, DTYPES[dtypes.get("data" if name == "data" else "state", torch.float32)])


def _operands(name, data, state, /, **kinds):
    fields = {"dtype": ctypes.c_int, **SCALARS}
    return type(name, (Operands,), {"_fields_": [(n, fields.get(k, Tensor)) for n, k in kinds.items()], "KINDS": kinds,
                                    "DATA": data, "STATE": state})


SelectiveScan = _operands(
    "SelectiveScan", "u", "initial_state", data="dtype", state="dtype", u="data", delta="data", A="param", B="data",
    C="data", D="param", z="data", delta_bias="param", initial_state="state", cu_seqlens="index", y="data",
    final_state="state", delta_softplus="int")
SelectiveScanGrads = _operands(
    "SelectiveScanGrads", "d_y", "d_final_state", d_y="data", d_final_state="state", d_u="data", d_delta="data",
    d_A="param", d_B="data", d_C="data", d_D="param", d_z="data", d_delta_bias="param", d_initial_state="state")
SelectiveScanStep = _operands(
    "SelectiveScanStep", "u", "state", data="dtype", state_type="dtype", u="data", delta="data", A="param", B="data",
    C="data", D="param", z="data", delta_bias="param", read_indices="index", write_indices="index", state="state",
    y="data", intermediate_states="state", delta_softplus="int")
CausalConv1d = _operands(
    "CausalConv1d", "x", "x", data="dtype", x="data", weight="param", bias="param", initial_state="data",
    cu_seqlens="index", y="data", final_state="data", act="activation")
CausalConv1dGrads = _operands(
    "CausalConv1dGrads", "d_y", "d_y", d_y="data", d_final_state="data", d_x="data", d_weight="param", d_bias="param",
    d_initial_state="data")
CausalConv1dStep = _operands(
    "CausalConv1dStep", "x", "state", data="dtype", x="data", weight="param", bias="param", read_indices="index",
    write_indices="index", state="data", y="data", intermediate_states="data", act="activation")


GatedDeltaRule = _operands(
    "GatedDeltaRule", "q", "initial_state", data="dtype", state="dtype", q="data", k="data", v="data", g="param",
    beta="param", initial_state="state", cu_seqlens="index", o="data", final_state="state", scale="double",
    qk_l2norm="int")
GatedDeltaRuleGrads = _operands(
    "GatedDeltaRuleGrads", "d_o", "d_final_state", d_o="data", d_final_state="state", d_q="data", d_k="data",
    d_v="data", d_g="param", d_beta="param", d_initial_state="state")
GatedDeltaRuleStep = _operands(
    "GatedDeltaRuleStep", "q", "state", data="dtype", state_type="dtype", q="data", k="data", v="data", g="param",
    beta="param", read_indices="index", write_indices="index", state="state", o="data", intermediate_states="state",
    scale="double", qk_l2norm="int")
Ssd = _operands(
    "Ssd", "x", "initial_state", data="dtype", state="dtype", x="data", dt="data", A="param", B="data", C="data",
    D="param", z="data", dt_bias="param", initial_state="state", cu_seqlens="index", y="data", final_state="state",
    dt_softplus="int")
SsdGrads = _operands(
    "SsdGrads", "d_y", "d_final_state", d_y="data", d_final_state="state", d_x="data", d_dt="data", d_A="param",
    d_B="data", d_C="data", d_D="param", d_z="data", d_dt_bias="param", d_initial_state="state")
SsdStep = _operands(
    "SsdStep", "x", "state", data="dtype", state_type="dtype", x="data", dt="data", A="param", B="data", C="data",
    D="param", z="data", dt_bias="param", read_indices="index", write_indices="index", state="state", y="data",
    intermediate_states="state", dt_softplus="int")

# The router and the bank are structs of their own there, which lie in memory as these members do.
_MERLIN = {"router_q": "data", "gamma": "param", "tau_mu": "param", "tau_sigma": "param"}
_BANK = {"S": "state", "mu": "param", "Sigma": "param", "counters": "counters"}
MultiState = _operands(
    "MultiState", "q", None, data="dtype", q="data", k="data", v="data", g="param", beta="param", moments_k="data",
    **_MERLIN, o="data", lam="param", m="int64", scale="double")
MultiStateStep = _operands(
    "MultiStateStep", "q", "S", data="dtype", state_type="dtype", q="data", k="data", v="data", g="param",
    beta="param", moments_k="data", **_MERLIN, **_BANK, o="data", m="int64", scale="double")
MultiStateRead = _operands(
    "MultiStateRead", "q", "S", data="dtype", state_type="dtype", q="data", **_MERLIN, **_BANK, o="data",
    top_k="int64", scale="double")


class Error(RuntimeError):
    """polystate refused a call, or CUDA did; the text is its own."""


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))
        for f in ("polystate_last_error", "polystate_build"):
            getattr(self.lib, f).restype = ctypes.c_char_p

    @property
    def build(self):
        return self.lib.polystate_build().decode()

    def has(self, function):
        return hasattr(self.lib, "polystate_" + function)

    def call(self, function, *operands, workspace=None):
        """Calls polystate_<function> on torch's current stream."""
        stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else None
        size = workspace.numel() if workspace is not None else 0
        self._check(function, Exec(stream, workspace.data_ptr() if size else None, size, 0), *operands)

    def workspace(self, function, *operands, empty=torch.empty):
        """The scratch memory of polystate_<function>, none if it needs none."""
        if not self.has(function + "_workspace_bytes"):
            return None
        size = ctypes.c_size_t()
        self._check(function + "_workspace_bytes", Exec(), *operands, size)
        return empty(size.value, dtype=torch.uint8, device=torch.device("cuda")) if size.value else None

    def _check(self, function, *arguments):
        if getattr(self.lib, "polystate_" + function)(*(ctypes.byref(a) for a in arguments)) != 0:
            raise Error(self.lib.polystate_last_error().decode())


def why_not(library, function):
    """Why a function cannot be called; empty if it can."""
    if library is None:
        return "no library given or found"
    return "" if library.has(function) else f"the library has no {function}"
