"""Tables in other formats than Parquet, which become Parquet once, in storage.

| member       | what it reads                                                                                  |
|--------------|------------------------------------------------------------------------------------------------|
| `text_files` | one table: `.csv`, `.tsv`, `.jsonl`, `.ndjson`, each also compressed (`.gz`, `.bz2`, `.zst`)   |
| `data_sets`  | all tables of a folder: BEIR, RecBole, MovieLens, sequences                                    |
| `converting` | finds such files, and writes their tables                                                      |
| `objects`    | tables of Python: pandas, Polars, DuckDB, Hugging Face, Ray Data, whatever Arrow can stream    |

A file is read whole. The rows keep their places, so that a message names the row of the file that the user has.
"""
