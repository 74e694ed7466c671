def write() -> int:
    raise NotImplementedError
