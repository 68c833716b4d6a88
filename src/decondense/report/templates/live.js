// Asks the server that this page came from whether there is anything new, and shows it.
const shownNow = document.documentElement.dataset.stamp;
setInterval(async () => {
  try {
    const now = await (await fetch("stamp")).text();
    if (now !== shownNow) location.reload();
  } catch { /* the server has ended: the page stays */ }
}, 3000);
