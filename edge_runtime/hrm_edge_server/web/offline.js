// Keeps the whole site in the browser after the first visit. `hrm site` writes SITE above this
// line: the version, and the files of that version.

const OWN = `hrm-edge ${registration.scope} `;
const NAME = OWN + SITE.version;

addEventListener("install", (event) => event.waitUntil(fill()));
addEventListener("activate", (event) => event.waitUntil(forgetOthers()));
addEventListener("fetch", (event) => event.respondWith(answer(event.request)));

async function fill() {
  const cache = await caches.open(NAME);
  await cache.addAll(SITE.files.map((file) => new Request(file, { cache: "no-cache" })));
}

async function forgetOthers() {
  const names = await caches.keys();
  const old = names.filter((name) => name.startsWith(OWN) && name !== NAME);
  await Promise.all(old.map((name) => caches.delete(name)));
}

async function answer(request) {
  const cache = await caches.open(NAME);
  return (await cache.match(request, { ignoreSearch: true })) ?? fetch(request);
}
