"""The PTX instruction table: forms, spellings, operand types, and what ``T.ptx`` is.

Not here: what an instruction requires of tile operands or does (``families``).
"""
