from transformer18.cli import main

if __name__ == "__main__" and __package__:
    main(prog_name="python -m transformer18")
