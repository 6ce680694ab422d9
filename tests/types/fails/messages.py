"""Messages and replies of wrong types."""

from dataclasses import dataclass

from sublet import App, Context, Function, Sum

app = App("fails")


@dataclass
class Order:
    article: str


@app.function
def stock(ctx: Context[int], change: int) -> int:
    return ctx.state.get() + change


@app.function
def remind(ctx: Context) -> None:
    ctx.emit("reminders", ctx.key)


def pay() -> int:
    return 1


def pay_with_arguments(amount: int) -> int:
    return amount


@app.function
async def orders(ctx: Context[list[Order]], order: Order) -> int:
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.send(stock, "pen", "1")
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.send(stock, "pen", order)
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.send(stock, "pen")
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.send(stock, message="1")
    # fails: mypy[call-overload] pyright[reportArgumentType]
    ctx.send(stock, 7, 1)
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.send(remind, "ada", 1)
    # fails: mypy[call-overload] pyright[reportArgumentType]
    ctx.send(print, "ada", 1)
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.send_many(stock, ["pen"], ["1"])
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.send_many(remind, ["ada"], [1])
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.send_after("1h", stock, "pen", "1")
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.send_after("1h", orders, "pen", 1)
    # fails: mypy[call-overload] pyright[reportArgumentType]
    ctx.send_after(stock, "1h", "pen", 1)
    left: str
    # fails: mypy[arg-type] pyright[reportAssignmentType]
    left = await ctx.call(stock, "pen", 1)
    # fails: mypy[arg-type] pyright[reportArgumentType]
    await ctx.call(stock, "pen", left)
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.emit(1, left)
    # fails: mypy[call-overload] pyright[reportCallIssue]
    await ctx.run("pay", 5)
    # fails: mypy[arg-type] pyright[reportCallIssue]
    await ctx.run("pay", pay_with_arguments)
    # fails: mypy[arg-type] pyright[reportAssignmentType]
    left = await ctx.run("pay", pay)
    return await ctx.call(stock, "pen", -1)


@app.function
def wrong_reply(ctx: Context[Sum], amount: int) -> str:
    ctx.state.add(amount)
    # fails: mypy[return-value] pyright[reportReturnType]
    return ctx.state.value


# fails: mypy[assignment] pyright[reportAssignmentType]
takes_order: Function[[Order], int] = stock
# fails: mypy[assignment] pyright[reportAssignmentType]
replies_text: Function[[int], str] = stock
# fails: mypy[assignment] pyright[reportAssignmentType]
keeps: Function[[int], int, str] = stock


def directly(ctx: Context[int], other: Context[str]) -> None:
    # fails: mypy[arg-type] pyright[reportArgumentType]
    stock(ctx, "1")
    # fails: mypy[arg-type] pyright[reportArgumentType]
    stock(other, 1)
    # fails: mypy[call-arg] pyright[reportCallIssue]
    stock(ctx, chnge=1)
