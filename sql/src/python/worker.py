"""One Python process of Forebay's pool: reads requests on standard input, answers on standard output.

A frame is: u32 length of the header, JSON header, u64 length of the body, body (an Arrow IPC stream, or nothing). Lengths are little-endian.
What the user's code prints goes to standard error.
"""

import importlib
import inspect
import json
import os
import struct
import sys
import threading
import time
import traceback

TRACEBACK_LINES = 16


class Failed(Exception):
    """An error whose text is the whole message."""


def watch_parent(parent):
    """Ends this process when its owner was killed while a call was running."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def read_exactly(stream, length):
    data = stream.read(length)
    if len(data) != length:
        sys.exit(0)
    return data


def read_frame(stream):
    (length,) = struct.unpack("<I", read_exactly(stream, 4))
    header = json.loads(read_exactly(stream, length))
    (length,) = struct.unpack("<Q", read_exactly(stream, 8))
    return header, read_exactly(stream, length)


def write_frame(stream, header, body=b""):
    text = json.dumps(header).encode()
    stream.write(struct.pack("<I", len(text)))
    stream.write(text)
    stream.write(struct.pack("<Q", len(body)))
    stream.write(body)
    stream.flush()


def explain(error, folder):
    """The exception with the last lines of its traceback, without our own frames and without the temporary folder."""
    if isinstance(error, Failed):
        return str(error)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(("<string>", "<frozen "))]
    lines = "".join(traceback.format_list(frames) + traceback.format_exception_only(type(error), error)).splitlines()
    text = "\n".join(lines[-TRACEBACK_LINES:])
    return text.replace(folder + os.sep, "")


def load(request):
    """Imports a function and looks at what it takes."""
    module = importlib.import_module(request["module"])
    function = getattr(module, request["function"], None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        known = ", ".join(f"`{n}`" for n in names) or "no functions"
        raise Failed(f"the module `{request['module']}` has no function `{request['function']}`; it has {known}")
    options = request["options"]
    signature = inspect.signature(function)
    keyed = [name for name in ("seed", "epoch") if name in signature.parameters]
    taken = [name for name in keyed if name in options]
    if taken:
        raise Failed(f"the option `{taken[0]}` has the name of a value that is handed to the function; rename it")
    try:
        signature.bind(None, **options, **dict.fromkeys(keyed, 0))
    except TypeError as error:
        raise Failed(f"{request['module']}:{request['function']}{signature} cannot be called with its options: {error}") from None
    return function, options, keyed


def as_batch(result):
    import pyarrow as pa

    if isinstance(result, pa.RecordBatch):
        return result
    if isinstance(result, pa.Table):
        batches = result.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=result.schema)
    raise Failed(f"the function returned {type(result).__name__}, not a pyarrow.RecordBatch")


def call(step, batch, seed, epoch):
    function, options, keyed = step
    values = {"seed": seed, "epoch": epoch}
    return as_batch(function(batch, **options, **{name: values[name] for name in keyed}))


def sample_value(pa, dtype, metadata, row):
    """A plain value of a type, for asking a function what it returns."""
    types = pa.types
    if isinstance(dtype, pa.BaseExtensionType):
        return sample_value(pa, dtype.storage_type, None, row)
    if metadata and metadata.get(b"ARROW:extension:name") == b"arrow.variable_shape_tensor":
        described = json.loads(metadata.get(b"ARROW:extension:metadata") or b"{}")
        axes = dtype.field("shape").type.list_size
        uniform = described.get("uniform_shape") or [None] * axes
        shape = [n or (8 if axis < 2 else 3) for axis, n in enumerate(uniform)]
        count = 1
        for n in shape:
            count *= n
        return {"data": [0] * count, "shape": shape}
    if types.is_boolean(dtype):
        return row % 2 == 1
    if types.is_floating(dtype):
        return row + 0.5
    if types.is_string(dtype) or types.is_large_string(dtype):
        return "ab"[row]
    if types.is_binary(dtype) or types.is_large_binary(dtype):
        return b"ab"[row : row + 1]
    if types.is_fixed_size_binary(dtype):
        return bytes(dtype.byte_width)
    if types.is_fixed_size_list(dtype):
        return [sample_value(pa, dtype.value_type, None, row)] * dtype.list_size
    if types.is_list(dtype) or types.is_large_list(dtype):
        return [sample_value(pa, dtype.value_type, None, row)] * 2
    if types.is_struct(dtype):
        return {f.name: sample_value(pa, f.type, f.metadata, row) for f in dtype}
    if types.is_dictionary(dtype):
        return sample_value(pa, dtype.value_type, None, row)
    if types.is_null(dtype) or types.is_map(dtype):
        return None
    return pa.scalar(row + 1, pa.int32()).cast(dtype).as_py() if types.is_integer(dtype) else None


def sample_batch(pa, schema):
    columns = []
    for field in schema:
        dtype = field.type
        values = [sample_value(pa, dtype, field.metadata, row) for row in range(2)]
        if isinstance(dtype, pa.BaseExtensionType):
            columns.append(pa.ExtensionArray.from_storage(dtype, pa.array(values, dtype.storage_type)))
        elif types_temporal(pa, dtype):
            columns.append(pa.array([1, 2], pa.int64() if dtype.bit_width == 64 else pa.int32()).cast(dtype))
        else:
            columns.append(pa.array(values, dtype))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def types_temporal(pa, dtype):
    return pa.types.is_temporal(dtype) and not pa.types.is_interval(dtype)


def untyped(pa, schema):
    return [field.name for field in schema if pa.types.is_null(field.type)]


def result_schema(step, batch):
    """What the function returns: as it declares, or from no rows, or from two made-up ones."""
    import pyarrow as pa

    declared = getattr(step[0], "output_schema", None)
    if declared is not None:
        return declared(batch.schema) if callable(declared) else declared
    try:
        schema = call(step, batch, 0, 0).schema
        if not untyped(pa, schema):
            return schema
    except Exception:  # noqa: BLE001 - many functions cannot do without rows
        pass
    schema = call(step, sample_batch(pa, batch.schema), 0, 0).schema
    if untyped(pa, schema):
        raise Failed(f"the column `{untyped(pa, schema)[0]}` has no type; give pa.array(...) one")
    return schema


def to_bytes(pa, schema, batch=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        if batch is not None:
            writer.write_batch(batch)
    return sink.getvalue()


def answer(request, body, steps):
    import pyarrow as pa

    if request["op"] == "load":
        steps[request["step"]] = load(request)
        return b""
    step = steps[request["step"]]
    reader = pa.ipc.open_stream(pa.py_buffer(body))
    batch = next(iter(reader), None)
    if batch is None:
        batch = pa.RecordBatch.from_pylist([], schema=reader.schema)
    if request["op"] == "schema":
        return to_bytes(pa, result_schema(step, batch))
    result = call(step, batch, request["seed"], request["epoch"])
    return to_bytes(pa, result.schema, result)


def limit_memory(limit):
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main():
    folder, limit, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    threading.Thread(target=watch_parent, args=(parent,), daemon=True).start()
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError as error:
        write_frame(answers, {"ok": False, "error": f"{sys.executable} cannot import pyarrow: {error}"})
        return
    if limit:
        limit_memory(limit)
    sys.path.insert(0, folder)
    write_frame(answers, {"ok": True, "pyarrow": pa.__version__})
    steps = {}
    while True:
        request, body = read_frame(requests)
        try:
            header, body = {"ok": True}, answer(request, body, steps)
        except SystemExit as error:
            header, body = {"ok": False, "error": f"the function called sys.exit({error.code!r})"}, b""
        except MemoryError as error:
            header, body = {"ok": False, "memory": True, "error": explain(error, folder)}, b""
        except BaseException as error:  # noqa: BLE001 - whatever the function raises is its answer
            header, body = {"ok": False, "error": explain(error, folder)}, b""
        sys.stderr.flush()
        write_frame(answers, header, body)


main()
