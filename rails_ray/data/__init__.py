"""Data: what is searched, what asks, and which answers which.

| member  | what it is                                                                   |
|---------|------------------------------------------------------------------------------|
| `text`  | the contract of a text data set: three Parquet tables, read and checked      |
| `emoji` | such a data set without any file: emoji and their names in 14 languages      |
| `batch` | training batches, drawn from the step's number alone                         |
"""
