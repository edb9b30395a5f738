;;; qwen-companion-changes-items.el --- What the buffer of changes shows, as items  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The buffer is made of items (qwen-companion-items.el): headings of turns,
;; headings of files, and hunks.  This file selects what is shown of the
;; journal, words and draws it, and finds the item at point.

;;; Code:

(require 'cl-lib)
(require 'diff-mode)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-changes-file)
(require 'qwen-companion-header)
(require 'qwen-companion-hunks)
(require 'qwen-companion-hunks-view)
(require 'qwen-companion-items)
(require 'qwen-companion-journal)
(require 'qwen-companion-kept-plans)
(require 'qwen-companion-layer)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defface qwen-companion-changes-turn
  '((t :inherit bold))
  "Face of the prompt that began a turn."
  :group 'qwen-companion)

(defface qwen-companion-changes-label
  '((t :inherit shadow))
  "Face of notes about a turn or a file."
  :group 'qwen-companion)

(defconst qwen-companion-changes-items-buffer-name "*qwen-companion changes*")

(defconst qwen-companion-changes-items--chunk 30
  "Headings of files made in one update: about 2 ms of work.
If more than 600 are drawn, one twentieth of them is made.")

(defconst qwen-companion-changes-items--pause 0.01
  "Seconds between two parts of an update, in which keys are handled.")

(defconst qwen-companion-changes-items--delay 0.1
  "Seconds in which changes are collected before the buffer is updated.")

(defconst qwen-companion-changes-items--page-lines 1000
  "Lines of a file after which hunks are hidden behind a button.")

(cl-defstruct (qwen-companion-changes-items-group
               (:constructor qwen-companion-changes-items--make-group (id part files))
               (:copier nil))
  "Files that are shown below one heading.
ID is a turn's id, or a list (SCOPE ROOT).  PART is the part of the
journal, as in a request, and FILES is a list in the form of
`qwen-companion-changed-file-path'."
  id part files)

(defun qwen-companion-changes-items-group-root (group)
  "Return the workspace root of GROUP."
  (plist-get (qwen-companion-changes-items-group-part group) :root))

(defun qwen-companion-changes-items-group-turn (group)
  "Return the turn id of GROUP, or nil if GROUP is not a single turn."
  (let ((part (qwen-companion-changes-items-group-part group)))
    (and (eq 'turn (plist-get part :scope))
         (plist-get part :turn))))

(defvar-local qwen-companion-changes-items-scope 'turns
  "The visible scope: `turns', `look', `commit', (since TURN) or (session ID).
For a root that is a worktree also `merge', the changes that a merge would
make in the main tree; `begun', the differences from its start; or (tree
OTHER), the differences from the worktree OTHER.")
(defun qwen-companion-changes-items-difference-p ()
  "Return non-nil when the visible scope is a difference of a worktree."
  (memq (or (car-safe qwen-companion-changes-items-scope) qwen-companion-changes-items-scope)
        '(merge begun tree)))

(defvar-local qwen-companion-changes-items-client nil
  "The client whose turns are shown, a string, or nil for all.")
(defvar-local qwen-companion-changes-items-all nil
  "Non-nil to include changes that were already seen when the buffer was opened.")
(defvar-local qwen-companion-changes-items-seen nil
  "Hash table of changes seen when the buffer was opened.
It maps (TURN . PATH) to t or a list of keys.")
(defvar qwen-companion-changes-items--read nil
  "The ids of the turns without files that have been shown.")
(defvar-local qwen-companion-changes-items-auto-unfold nil
  "Non-nil in a list just opened, whose newest turn is unfolded.
After that it is (KEY . END): the key of that turn, and the time until
which a newer turn is unfolded instead, as by `float-time'.")
(defvar-local qwen-companion-changes-items-views nil
  "Hash table of the `qwen-companion-changes-file's by (GROUP . PATH).")
(defvar-local qwen-companion-changes-items-headings nil
  "Hash table of the items of the headings of files, by (GROUP . PATH).
Reusing them saves most of the time of an update of a thousand files.")
(defvar-local qwen-companion-changes-items--budget nil
  "Headings of files that the current update may still make.
A negative number means that some are missing or outdated.")
(defvar-local qwen-companion-changes-items-scope-files nil
  "Alist from roots to the files of the scope, from the journal.
The cdr is a list of files, or a string, the reason for having none.")
(defvar-local qwen-companion-changes-items--scope-request nil
  "Number of the last request for the files of the scope.")
(defvar-local qwen-companion-changes-items-root nil
  "The only root that is shown, nil for all.")
(defvar-local qwen-companion-changes-items-whole nil
  "Keys of the files whose hunks are all shown.")
(defvar-local qwen-companion-changes-items-comments nil
  "The unsent comments.")
(defvar-local qwen-companion-changes-items-stale-point nil
  "Position of point when an update changed lines of the region, or nil.")
(defvar-local qwen-companion-changes-items-arrows nil
  "Non-nil when the signs of headings can be displayed.")

(defvar qwen-companion-changes-items-drawn-hook nil
  "Hook run when items have been drawn, in the buffer of changes.")

;;; Where commands act

(defvar qwen-companion-changes-items-file-function nil
  "Function that calls its argument with point on the hunk at point in a file.")

(defmacro qwen-companion-changes-items-on-change (&rest body)
  "Evaluate BODY with point on a change, and return its value.
In a file, that is the agent's hunk at point, in a hidden buffer."
  (declare (indent 0) (debug t))
  `(if (derived-mode-p 'qwen-companion-changes-mode)
       (progn ,@body)
     (funcall qwen-companion-changes-items-file-function (lambda () ,@body))))

;;; Selection

(defun qwen-companion-changes-items--scope-of (kind)
  "Return the turn or session that limits the scope, if the scope is of KIND."
  (and (eq kind (car-safe qwen-companion-changes-items-scope))
       (cadr qwen-companion-changes-items-scope)))

(defun qwen-companion-changes-items-buffer ()
  "Return the buffer of this mode, or nil."
  (get-buffer qwen-companion-changes-items-buffer-name))

(defun qwen-companion-changes-items-shown-turns ()
  "Return each turn of the client that is shown, newest first."
  (cl-remove-if-not
   (lambda (turn)
     (and (or (null qwen-companion-changes-items-client)
              (cl-subsetp (qwen-companion-changes-items--clients
                           qwen-companion-changes-items-client)
                          (qwen-companion-changes-items--clients
                           (qwen-companion-turn-client turn))
                          :test #'equal)
              (eq 'user (qwen-companion-turn-who turn)))
          (member qwen-companion-changes-items-root
                  (list nil (qwen-companion-turn-root turn)))
          (or (qwen-companion-turn-files turn)
              (qwen-companion-turn-notes turn)
              (null (qwen-companion-turn-end turn)))))
   (qwen-companion-journal-turns)))

(defun qwen-companion-changes-items--unreviewed-p (file)
  "Return non-nil when FILE lacks a wanted review, and is not marked as seen."
  (and (assoc "unreviewed" (qwen-companion-changed-file-by file))
       (not (qwen-companion-changed-file-seen file))))

(defun qwen-companion-changes-items--unreviewed-group-p (group)
  "Return non-nil when a file of GROUP lacks a wanted review."
  (cl-some #'qwen-companion-changes-items--unreviewed-p
           (qwen-companion-changes-items-group-files group)))

(defun qwen-companion-changes-items--first (predicate list)
  "Return LIST with the elements that satisfy PREDICATE first."
  (append (cl-remove-if-not predicate list) (cl-remove-if predicate list)))

(defun qwen-companion-changes-items--groups ()
  "Return the groups to show in order."
  (if (eq qwen-companion-changes-items-scope 'turns)
      (qwen-companion-changes-items--first
       #'qwen-companion-changes-items--unreviewed-group-p
       (delq nil (mapcar #'qwen-companion-changes-items--turn-group
                         (qwen-companion-changes-items-shown-turns))))
    (mapcar
     (pcase-lambda (`(,root . ,files))
       (qwen-companion-changes-items--make-group
        (list qwen-companion-changes-items-scope root)
        (qwen-companion-changes-items--part root)
        (if (listp files)
            (qwen-companion-changes-items--first
             #'qwen-companion-changes-items--unreviewed-p files)
          files)))
     qwen-companion-changes-items-scope-files)))

(defun qwen-companion-changes-items--part (root)
  "Return the part of the journal of ROOT for the scope, as in a request."
  (list :root root
        :scope (car (ensure-list qwen-companion-changes-items-scope))
        :turn (qwen-companion-changes-items--scope-of 'since)
        :session (qwen-companion-changes-items--scope-of 'session)
        :other (qwen-companion-changes-items--scope-of 'tree)))

(defun qwen-companion-changes-items--turn-group (turn)
  "Return the group of TURN with its unseen files, or nil if all are seen."
  (let* ((id (qwen-companion-turn-id turn))
         (files (qwen-companion-turn-files turn))
         (shown (cl-remove-if
                 (lambda (file)
                   (and (not qwen-companion-changes-items-all)
                        (eq t (gethash (cons id (qwen-companion-changed-file-path file))
                                       qwen-companion-changes-items-seen))))
                 files)))
    (when (or shown
              (and (null files)
                   (or qwen-companion-changes-items-all
                       (not (gethash id qwen-companion-changes-items-seen)))))
      (when (and (null files) (qwen-companion-turn-end turn))
        (cl-pushnew id qwen-companion-changes-items--read :test #'equal))
      (qwen-companion-changes-items--make-group
       id (list :root (qwen-companion-turn-root turn) :scope 'turn :turn id
                :session (qwen-companion-turn-session turn))
       (qwen-companion-changes-items--first
        #'qwen-companion-changes-items--unreviewed-p shown)))))

(defun qwen-companion-changes-items-note-seen ()
  "Hide each change that is now marked as seen.
Hide also turns without files, whose notes were shown before."
  (setq qwen-companion-changes-items-seen (make-hash-table :test #'equal))
  (dolist (turn (qwen-companion-journal-turns))
    (when (and (null (qwen-companion-turn-files turn))
               (member (qwen-companion-turn-id turn) qwen-companion-changes-items--read))
      (puthash (qwen-companion-turn-id turn) t qwen-companion-changes-items-seen))
    (dolist (file (qwen-companion-turn-files turn))
      (puthash (cons (qwen-companion-turn-id turn)
                     (qwen-companion-changed-file-path file))
               (or (and (qwen-companion-changed-file-seen file) t)
                   (qwen-companion-changed-file-seen-hunks file))
               qwen-companion-changes-items-seen))))

(defun qwen-companion-changes-items--seen-keys (group path &optional now)
  "Return the keys of the hunks seen in PATH of GROUP when the buffer opened.
With NOW non-nil, return those seen now."
  (let ((turn (qwen-companion-changes-items-group-turn group)))
    (if (and turn (not now))
        (let ((seen (gethash (cons turn path) qwen-companion-changes-items-seen)))
          (and (listp seen) seen))
      (cl-loop for turn in (qwen-companion-journal-turns-of path)
               for file = (qwen-companion-journal-file turn path)
               append (qwen-companion-changed-file-seen-hunks file)))))

(defun qwen-companion-changes-items--roots ()
  "Return the root of each turn, each root once."
  (if qwen-companion-changes-items-root
      (list qwen-companion-changes-items-root)
    (qwen-companion-journal-roots)))

(defun qwen-companion-changes-items-request-scope-files ()
  "Request the files of the scope, unless each turn is shown by itself."
  (let ((scope qwen-companion-changes-items-scope)
        (buffer (current-buffer))
        (number (setq qwen-companion-changes-items--scope-request
                      (1+ (or qwen-companion-changes-items--scope-request 0)))))
    (unless (eq scope 'turns)
      (dolist (root (if-let* ((turn (qwen-companion-journal-turn
                                     (qwen-companion-changes-items--scope-of 'since))))
                        (list (qwen-companion-turn-root turn))
                      (qwen-companion-changes-items--roots)))
        (qwen-companion-journal-ask
         'journal-files (qwen-companion-changes-items--part root)
         (lambda (reply)
           (qwen-companion-buffers-when-live buffer
             (when (= number qwen-companion-changes-items--scope-request)
               (setf (alist-get root qwen-companion-changes-items-scope-files nil nil #'equal)
                     (or (qwen-companion-journal-error reply)
                         (qwen-companion-journal-reply-files reply)))
               (qwen-companion-changes-items-update)))))))))

;;; In words

(defun qwen-companion-changes-items--arrow (key)
  "Return the sign of the heading KEY: folded or unfolded."
  (let ((open (member key qwen-companion-items-toggled)))
    (if qwen-companion-changes-items-arrows
        (if open "▾ " "▸ ")
      (if open "v " "> "))))

(defun qwen-companion-changes-items--label (text)
  "Return TEXT in the face of labels."
  (propertize text 'face 'qwen-companion-changes-label))

(defun qwen-companion-changes-items--counts (files)
  "Return how many lines were added and deleted in FILES, as text."
  (concat
   (propertize (format "+%d" (apply #'+ (mapcar #'qwen-companion-changed-file-added files)))
               'face 'diff-indicator-added)
   " "
   (propertize (format "-%d" (apply #'+ (mapcar #'qwen-companion-changed-file-deleted files)))
               'face 'diff-indicator-removed)))

(defun qwen-companion-changes-items-time (milliseconds)
  "Return the time MILLISECONDS as text, with the date unless it is today."
  (let ((time (seconds-to-time (/ milliseconds 1000.0))))
    (if (equal (format-time-string "%F" time) (format-time-string "%F"))
        (format-time-string "%H:%M" time)
      (format-time-string "%m-%d %H:%M" time))))

(defun qwen-companion-changes-items-client-name (client)
  "Return the name of CLIENT for a person, without its version.
CLIENT may name several CLIs, as in `qwen-companion-changes-items--clients'."
  (if (string-empty-p (or client "")) "a CLI"
    (string-join
     (delete-dups (mapcar (lambda (name) (car (split-string name " [0-9]")))
                          (qwen-companion-changes-items--clients
                           (qwen-companion-untrusted-line client))))
     " or ")))

(defun qwen-companion-changes-items--clients (client)
  "Return the CLIs named in CLIENT, that of a turn.
A change that one of several agents has made is in a turn of all."
  (split-string (or client "") " or "))

(defun qwen-companion-changes-items-author (client start)
  "Return the name and version of CLIENT, and the time its turn began.
START is that time in milliseconds since the epoch."
  (concat (if (string-empty-p (or client "")) "A CLI"
            (qwen-companion-untrusted-line client))
          ", " (qwen-companion-changes-items-time start)))

(defun qwen-companion-changes-items-models (origin)
  "Return the models of ORIGIN, a `qwen-companion-turn-origin', or nil for none."
  (when-let* ((models (qwen-companion-turn-origin-models origin)))
    (mapconcat #'qwen-companion-untrusted-line models ", ")))

(defun qwen-companion-changes-items-help (id)
  "Describe the CLI and models of the turn ID, with its prompt, whole if known.
Add the plan that was approved in the turn."
  (if-let* ((known (qwen-companion-journal-prompt id)))
      (pcase-let ((`(,origin . ,prompt) known))
        (concat (qwen-companion-changes-items-author (qwen-companion-turn-origin-client origin)
                                                     (qwen-companion-turn-origin-start origin))
                (when-let* ((models (qwen-companion-changes-items-models origin)))
                  (concat ", " models))
                ", session "
                (qwen-companion-untrusted-line (qwen-companion-turn-origin-session origin))
                "\n\n" (qwen-companion-untrusted-text (qwen-companion-untrusted-cut prompt) t)
                (when-let* ((path (qwen-companion-turn-origin-plan origin))
                            (plan (with-temp-buffer
                                    (ignore-error file-error
                                      (qwen-companion-kept-plans-insert path)
                                      (buffer-string)))))
                  (concat "\n\nThe approved plan:\n"
                          (qwen-companion-untrusted-text (qwen-companion-untrusted-cut plan) t)))))
    (when-let* ((turn (qwen-companion-journal-turn id)))
      (concat (qwen-companion-changes-items-author
               (qwen-companion-turn-client turn) (qwen-companion-turn-start turn))
              "\n"
              (qwen-companion-untrusted-line (or (qwen-companion-turn-prompt turn) ""))))))

;; One text property instead of two, on each piece of each heading.
(setplist 'qwen-companion-changes-items--heading '(mouse-face highlight follow-link t))

(defvar qwen-companion-changes-items--today nil
  "Today's date, computed once for each collection of the wanted items.")

(defun qwen-companion-changes-items--heading (group)
  "Return the item of the heading of GROUP.
Its text is made when it is drawn: of hundreds, most do not change."
  (let* ((id (qwen-companion-changes-items-group-id group))
         (key (list 'group id))
         (turn (and (stringp id) (qwen-companion-journal-turn id)))
         (undone (and turn (qwen-companion-changes-items-undone turn)))
         (roots (cdr (qwen-companion-changes-items--roots))))
    (cons key
          (cons (list (or turn (qwen-companion-changes-items-scope-words))
                      (qwen-companion-changes-items-group-files group)
                      (and (member key qwen-companion-items-toggled) t)
                      undone
                      (and roots t)
                      ;; The heading of a turn of another day has the date.
                      qwen-companion-changes-items--today)
                (lambda ()
                  (insert (qwen-companion-changes-items--make-heading
                           group turn undone roots)))))))

(defun qwen-companion-changes-items--make-heading (group turn undone roots)
  "Return a new heading of GROUP, which is TURN or, with nil, a scope.
UNDONE is as by `qwen-companion-changes-items-undone'.  ROOTS is non-nil
when there are several."
  (let* ((files (qwen-companion-changes-items-group-files group))
         (files (and (listp files) files)))
    (concat
     (propertize
      (concat
       (qwen-companion-changes-items--arrow
        (list 'group (qwen-companion-changes-items-group-id group)))
       (when turn
         (concat (qwen-companion-changes-items-time (qwen-companion-turn-start turn)) "  "))
       (string-pad (qwen-companion-changes-items--counts files) 9)
       (qwen-companion-changes-items--label
        (format "  %d file%s  " (length files) (if (= 1 (length files)) " " "s")))
       (if turn
           (qwen-companion-changes-items--turn-words turn files undone)
         (propertize (qwen-companion-changes-items-scope-words)
                     'face 'qwen-companion-changes-turn))
       (let* ((root (qwen-companion-changes-items-group-root group))
              (place (car (qwen-companion-places-split root))))
         (when (or place roots)
           (qwen-companion-changes-items--label
            (concat "  " (and place (concat (qwen-companion-places-label place) ":"))
                    (qwen-companion-places-last-part (qwen-companion-untrusted-path root))))))
       (when-let* ((used (qwen-companion-layer-usage (qwen-companion-turn-usage turn))))
         (qwen-companion-changes-items--label (concat "  " used))))
      'category 'qwen-companion-changes-items--heading)
     "\n")))

(defun qwen-companion-changes-items--turn-words (turn files undone)
  "Return the heading of TURN without the numbers; FILES are shown.
UNDONE is as by `qwen-companion-changes-items-undone'."
  (let ((client (qwen-companion-turn-client turn))
        (prompt (qwen-companion-untrusted-line (or (qwen-companion-turn-prompt turn) ""))))
    (concat
     (qwen-companion-changes-items--label
      (concat (if (eq 'user (qwen-companion-turn-who turn)) "you"
                (qwen-companion-changes-items-client-name client))
              "  "))
     (cond ((null (qwen-companion-turn-end turn))
            (propertize "working  " 'face 'warning))
           (t (when-let* ((words (qwen-companion-changes-items--undone-words turn undone)))
                (propertize (concat words "  ") 'face 'warning))))
     (when (cl-some #'qwen-companion-changes-items--unreviewed-p files)
       (propertize "written unreviewed  " 'face 'warning))
     (propertize (if (string-empty-p prompt) "(no prompt)" prompt)
                 'face (if (and files (cl-every #'qwen-companion-changed-file-seen files))
                           'qwen-companion-changes-label
                         'qwen-companion-changes-turn))
     (when (and files (cl-every #'qwen-companion-changed-file-seen files))
       (qwen-companion-changes-items--label "  seen")))))

(defun qwen-companion-changes-items--undone-words (turn undone)
  "Describe the undone or rewound part of TURN; return nil for none.
UNDONE is as by `qwen-companion-changes-items-undone'."
  (let ((files (pcase undone
                 ('t "undone")
                 ('partly "partly undone"))))
    (cond ((not (qwen-companion-turn-rewound turn)) files)
          ((equal files "undone") "rewound")
          (t (concat "rewound, files " (or files "kept"))))))

(defun qwen-companion-changes-items-scope-words ()
  "Return the name of the visible scope."
  (pcase qwen-companion-changes-items-scope
    ('turns "Turns")
    ('look "Not seen yet")
    ('commit "Since the last commit")
    (`(session ,_) "This session")
    ('merge "What a merge would change in the main tree")
    ('begun "Differences from where it began")
    (`(tree ,other)
     (concat "Differences from " (qwen-companion-untrusted-text (file-name-nondirectory other))))
    (`(since ,id)
     (let ((prompt (qwen-companion-untrusted-line
                    (or (qwen-companion-turn-prompt (qwen-companion-journal-turn id))
                        ""))))
       (concat "Since: " (truncate-string-to-width prompt 40 nil nil t))))))

(defun qwen-companion-changes-items--name (path root)
  "Return PATH below ROOT for a reader."
  (let ((root (file-name-as-directory root)))
    (qwen-companion-untrusted-text
     (if (string-prefix-p root path)
         (substring path (length root))
       (abbreviate-file-name path)))))

(defun qwen-companion-changes-items--file-heading (group file)
  "Return the item of the heading of FILE in GROUP.
Reuse it if nothing in it has changed.  If too many have been made, return
an outdated one, or nil."
  (let* ((path (qwen-companion-changed-file-path file))
         (place (cons (qwen-companion-changes-items-group-id group) path))
         (view (and (> (hash-table-count qwen-companion-changes-items-views) 0)
                    (gethash place qwen-companion-changes-items-views)))
         (undone (and view (qwen-companion-changes-file-undone view)))
         (known (gethash place qwen-companion-changes-items-headings))
         (key (if known (car known) (qwen-companion-changes-items-file-key group path)))
         (open (and (member key qwen-companion-items-toggled) t)))
    (pcase known
      (`(,_ (,(pred (eq file)) ,(pred (eq open)) ,(pred (eq undone))) . ,_)
       known)
      ((guard (or open (> (cl-decf qwen-companion-changes-items--budget) -1)))
       (puthash place
                ;; The texts of 3,000 would make each collection of garbage
                ;; longer by a third.
                (cons key
                      (cons (list file open undone)
                            (lambda ()
                              (insert (qwen-companion-changes-items--make-file-heading
                                       group file undone)))))
                qwen-companion-changes-items-headings))
      (_ known))))

(defun qwen-companion-changes-items--make-file-heading (group file undone)
  "Return a new heading of FILE in GROUP; UNDONE is non-nil if all of it is."
  (let* ((path (qwen-companion-changed-file-path file))
         (root (qwen-companion-changes-items-group-root group))
         (key (qwen-companion-changes-items-file-key group path))
         (tools (remove "unreviewed" (delete-dups (mapcar #'car (qwen-companion-changed-file-by file))))))
    (concat
     (propertize
      (concat
       "  " (qwen-companion-changes-items--arrow key)
       (propertize (qwen-companion-changes-items--name path root)
                   'face (if (qwen-companion-changed-file-seen file)
                             'qwen-companion-changes-label
                           'diff-file-header))
       "  "
       (pcase (qwen-companion-changed-file-kind file)
         ('added (propertize "new  " 'face 'diff-indicator-added))
         ('deleted (propertize "deleted  " 'face 'diff-indicator-removed))
         ('renamed
          (concat "was " (qwen-companion-changes-items--name
                          (or (qwen-companion-changed-file-from file) "?") root)
                  "  "))
         ('mode "mode  "))
       (if (qwen-companion-changed-file-binary file)
           "not a text"
         (qwen-companion-changes-items--counts (list file)))
       (qwen-companion-changes-items--label
        (concat
         (when tools
           (concat "  " (qwen-companion-untrusted-line (string-join tools ", "))))
         (when (cl-some #'cadr (qwen-companion-changed-file-by file)) " (subagent)")
         (when (qwen-companion-changed-file-mixed file)
           (if (eq 'merge qwen-companion-changes-items-scope)
               "  conflicts with the main tree"
             "  with edits of yours"))
         (when (qwen-companion-changed-file-seen file) "  seen")))
       (when (qwen-companion-changes-items--unreviewed-p file)
         (propertize "  written unreviewed" 'face 'warning))
       (when undone
         (propertize "  undone" 'face 'warning)))
      'category 'qwen-companion-changes-items--heading)
     "\n")))

(defvar qwen-companion-changes-items--drawn nil
  "The file being drawn, (VIEW . KEYS); KEYS identify its seen hunks.")

(defun qwen-companion-changes-items-hunk-note (difference hunk)
  "Return a note for the header of HUNK of DIFFERENCE, or nil."
  (pcase-let ((`(,view . ,keys) (or qwen-companion-changes-items--drawn
                                    (qwen-companion-changes-items--drawing))))
    (concat
     (when (qwen-companion-hunks-dropped-p hunk)
       (propertize
        (substitute-command-keys " undone, \\[qwen-companion-changes-bring-back] brings it back") 'face 'warning))
     (when (and view
                (eq difference (qwen-companion-changes-file-difference view))
                (qwen-companion-changes-items--hunk-seen-p view hunk keys))
       (qwen-companion-changes-items--label " seen")))))

(defun qwen-companion-changes-items--drawing ()
  "Return the value of `qwen-companion-changes-items--drawn' for the file at point."
  (pcase (qwen-companion-items-key-at (point))
    (`(,(or 'file 'body) ,group ,path)
     (cons (gethash (cons group path) qwen-companion-changes-items-views)
           (qwen-companion-changes-items--seen-keys
            (qwen-companion-changes-items-group-of group) path t)))))

(defun qwen-companion-changes-items--hunk-seen-p (view hunk keys)
  "Return non-nil when KEYS has the key of each change in HUNK of VIEW."
  (and keys
       (cl-every (lambda (change)
                   (member (qwen-companion-changes-file-key view change) keys))
                 (qwen-companion-hunks-hunk-changes hunk))))

;;; Items

(defun qwen-companion-changes-items-file-key (group path)
  "Return the key of the heading of PATH in GROUP."
  (list 'file (qwen-companion-changes-items-group-id group) path))

(defun qwen-companion-changes-items-group-of (id)
  "Return the group ID that is shown, or nil."
  (cl-find id (qwen-companion-changes-items--groups)
           :key #'qwen-companion-changes-items-group-id :test #'equal))

(defun qwen-companion-changes-items--unfold-first (groups)
  "Unfold the first of GROUPS, in a list that has just been opened.
The turns of several roots arrive one after the other.  Within a second,
unfold a newer one that had already begun instead."
  (pcase-let* ((`(,old . ,end) (if (consp qwen-companion-changes-items-auto-unfold)
                                   qwen-companion-changes-items-auto-unfold
                                 (cons nil (1+ (float-time)))))
               (id (qwen-companion-changes-items-group-id (car groups)))
               (start (qwen-companion-turn-start (qwen-companion-journal-turn id))))
    (cond ((or (> (float-time) end)
               (and old (> (or start 0) (* 1000 (1- end)))))
           (setq qwen-companion-changes-items-auto-unfold nil))
          ((not (equal old (list 'group id)))
           (setq qwen-companion-changes-items-auto-unfold (cons (list 'group id) end)
                 qwen-companion-items-toggled
                 (cons (list 'group id) (delete old qwen-companion-items-toggled)))))))

(defun qwen-companion-changes-items--wanted-items ()
  "Return the items to show: a list of (KEY SIGNATURE . INSERT).
INSERT is a text, or a function that inserts one at point."
  (let ((groups (qwen-companion-changes-items--groups))
        (qwen-companion-changes-items--today (format-time-string "%F")))
    (when (and qwen-companion-changes-items-auto-unfold groups)
      (qwen-companion-changes-items--unfold-first groups))
    (nconc (qwen-companion-changes-items--problem-items)
           (or (mapcan #'qwen-companion-changes-items--group-items groups)
               (let ((text (concat (qwen-companion-changes-items--nothing) "\n")))
                 (list (cons '(nothing) (cons text text))))))))

(defun qwen-companion-changes-items--problem-items ()
  "Return an item for each root that is not recorded."
  (mapcar (lambda (line)
            (let ((text (propertize (concat line "\n") 'face 'warning)))
              (cons (list 'problem line) (cons text text))))
          (qwen-companion-journal-problems)))

(defun qwen-companion-changes-items--nothing ()
  "Return why there is nothing to show."
  (cond
   ((not (eq 'ready (qwen-companion-state)))
    (format "The companion is not ready (%s)." (qwen-companion-state)))
   ((not (eq qwen-companion-changes-items-scope 'turns))
    (if qwen-companion-changes-items-scope-files "Nothing was changed." "Asking..."))
   ((hash-table-empty-p qwen-companion-changes-items-seen)
    "No CLI has changed a file yet.")
   (t (substitute-command-keys
       "All changes have been seen; \\[qwen-companion-changes-toggle-seen] shows them."))))

(defun qwen-companion-changes-items--group-items (group)
  "Return the items of GROUP.
They are as in `qwen-companion-changes-items--wanted-items'."
  (let* ((id (qwen-companion-changes-items-group-id group))
         (key (list 'group id))
         (files (qwen-companion-changes-items-group-files group))
         (turn (and (stringp id) (qwen-companion-journal-turn id))))
    (cons
     (qwen-companion-changes-items--heading group)
     (when (member key qwen-companion-items-toggled)
       (append
        (cl-loop for note in (qwen-companion-turn-notes turn)
                 for text = (qwen-companion-changes-items--label
                             (concat "    " (qwen-companion-untrusted-line note) "\n"))
                 collect (cons (list 'note id note) (cons text text)))
        (if (stringp files)
            (let ((text (concat "    " files "\n")))
              (list (cons (list 'note id files) (cons text text))))
          (mapcan (lambda (file)
                    (qwen-companion-changes-items--file-items group file))
                  files)))))))

(defun qwen-companion-changes-items--file-items (group file)
  "Return the items of FILE in GROUP."
  (when-let* ((heading (qwen-companion-changes-items--file-heading group file))
              (key (car heading))
              (path (qwen-companion-changed-file-path file)))
    (cons
     heading
     (when (member key qwen-companion-items-toggled)
       (let* ((view (qwen-companion-changes-items--view group path))
              (body (list 'body (qwen-companion-changes-items-group-id group) path))
              (drawn (qwen-companion-items-signature body)))
         (list
          (cons body
                (cons (if (and drawn (eq 'loading (qwen-companion-changes-file-state view)))
                          ;; Show the old hunks until the new ones arrive.
                          drawn
                        (list (qwen-companion-changes-file-signature view)
                              qwen-companion-hunks-view-context-lines
                              qwen-companion-changes-items-all
                              (and (member key qwen-companion-changes-items-whole) t)
                              (qwen-companion-changes-items--seen-keys group path)
                              (qwen-companion-changes-items--seen-keys group path t)))
                      (lambda ()
                        (qwen-companion-changes-items--insert-body group view))))))))))

(defun qwen-companion-changes-items--view (group path)
  "Return the view of PATH in GROUP; request its texts if they are missing."
  (let ((place (cons (qwen-companion-changes-items-group-id group) path)))
    (or (gethash place qwen-companion-changes-items-views)
        (let ((view (make-qwen-companion-changes-file
                     :part (qwen-companion-changes-items-group-part group)
                     :path path
                     :from (qwen-companion-changed-file-from
                            (qwen-companion-changes-items-shown-file group path)))))
          (puthash place view qwen-companion-changes-items-views)
          (qwen-companion-changes-items--load view)
          view))))

(defun qwen-companion-changes-items--load (view)
  "Load VIEW, which is shown in the current buffer, and update it then."
  (let ((buffer (current-buffer)))
    (qwen-companion-changes-file-load
     view
     (lambda ()
       (qwen-companion-buffers-when-live buffer
         (qwen-companion-changes-items-update-soon))))))

(defun qwen-companion-changes-items--insert-body (group view)
  "Insert the hunks of VIEW in GROUP, or why there are none."
  (pcase (qwen-companion-changes-file-state view)
    ('ready (qwen-companion-changes-items--insert-hunks group view))
    ('failed
     (insert (propertize (concat "    " (qwen-companion-changes-file-reason view)
                                 (substitute-command-keys "; \\[revert-buffer] tries again\n"))
                         'face 'warning)))
    ('binary
     (insert (qwen-companion-changes-items--label
              (concat
               (format "    Binary file: %s, was %s."
                       (qwen-companion-changes-items--size
                        (qwen-companion-changes-file-after view))
                       (qwen-companion-changes-items--size
                        (qwen-companion-changes-file-before view)))
               (substitute-command-keys "  \\[qwen-companion-changes-undo] undoes all of it.\n")))))
    (_ (insert (qwen-companion-changes-items--label "    Comparing...\n")))))

(defun qwen-companion-changes-items--size (bytes)
  "Return the length of BYTES in words; nil means that there was no file."
  (if bytes (format "%d bytes" (length bytes)) "no file"))

(defun qwen-companion-changes-items--hunks (group view)
  "Return (SHOWN . COUNT): the hunks of VIEW in GROUP, and the number of seen ones."
  (let* ((difference (qwen-companion-changes-file-difference view))
         (all (qwen-companion-hunks-group
               (qwen-companion-hunks-changes difference)
               qwen-companion-hunks-view-context-lines
               (qwen-companion-hunks-line-count
                (qwen-companion-hunks-old difference))))
         (keys (and (not qwen-companion-changes-items-all)
                    (qwen-companion-changes-items--seen-keys
                     group (qwen-companion-changes-file-path view))))
         (shown (cl-remove-if (lambda (hunk)
                                (qwen-companion-changes-items--hunk-seen-p view hunk keys))
                              all)))
    (cons shown (- (length all) (length shown)))))

(defun qwen-companion-changes-items--insert-hunks (group view)
  "Insert the hunks of VIEW in GROUP."
  (pcase-let* ((difference (qwen-companion-changes-file-difference view))
               (path (qwen-companion-changes-file-path view))
               (key (qwen-companion-changes-items-file-key group path))
               (`(,hunks . ,seen) (qwen-companion-changes-items--hunks group view))
               (qwen-companion-changes-items--drawn
                (cons view (qwen-companion-changes-items--seen-keys group path t)))
               (limit (if (member key qwen-companion-changes-items-whole)
                          most-positive-fixnum
                        qwen-companion-changes-items--page-lines))
               (lines 0))
    (when (and (null hunks) (= seen 0))
      (insert (qwen-companion-changes-items--label
               (format "    %s\n"
                       (if (eq (qwen-companion-changes-file-before-mode view)
                               (qwen-companion-changes-file-after-mode view))
                           "The texts do not differ."
                         (format "It is %s now, and was %s."
                                 (or (qwen-companion-changes-file-after-mode view) "gone")
                                 (or (qwen-companion-changes-file-before-mode view)
                                     "not there")))))))
    (while (and hunks (< lines limit))
      (let ((start (point)))
        (qwen-companion-hunks-view-draw difference (pop hunks))
        (cl-incf lines (count-lines start (point)))))
    (when hunks
      (qwen-companion-hunks-view-draw-button
       (format "%d more hunk%s (RET shows them)"
               (length hunks) (if (cdr hunks) "s" ""))
       (lambda ()
         (push key qwen-companion-changes-items-whole)
         (qwen-companion-changes-items-update))))
    (when (> seen 0)
      (insert (qwen-companion-changes-items--label
               (format "    %d hunk%s seen: %s shows %s\n" seen (if (= seen 1) "" "s")
                       (substitute-command-keys "\\[qwen-companion-changes-toggle-seen]")
                       (if (= seen 1) "it" "them")))))))

;;; Updating

(defun qwen-companion-changes-items-update-soon ()
  "Update the current buffer in a moment if it is in a window."
  (qwen-companion-timers-update-soon qwen-companion-changes-items--delay))

(defun qwen-companion-changes-items-update ()
  "Bring the current buffer up to date.
Replace only what has changed, and keep point, the mark and the windows.
Draw some of very many files a moment later."
  (setq qwen-companion-changes-items--budget
        ;; Going through the drawn items takes time too.
        (max qwen-companion-changes-items--chunk
             (/ (hash-table-count qwen-companion-changes-items-headings) 20)))
  (let ((wanted (qwen-companion-changes-items--wanted-items)))
    (force-mode-line-update)
    (when (< qwen-companion-changes-items--budget 0)
      (qwen-companion-timers-update-soon qwen-companion-changes-items--pause))
    (let ((marked (qwen-companion-changes-items--marked-text)))
      (when (qwen-companion-items-update
             wanted
             (lambda ()
               (run-hooks 'qwen-companion-changes-items-drawn-hook)
               (qwen-companion-untrusted-show-hidden)))
        (set-buffer-modified-p nil)
        (unless (equal marked (qwen-companion-changes-items--marked-text))
          (deactivate-mark)
          (setq qwen-companion-changes-items-stale-point (point)))))))

(defun qwen-companion-changes-items--marked-text ()
  "Return the text of the active region, or nil."
  (and (use-region-p)
       (buffer-substring-no-properties (region-beginning) (region-end))))

(defun qwen-companion-changes-items-reload (paths)
  "Reload the visible views of PATHS, or of all files if t; forget hidden ones."
  (maphash
   (lambda (place view)
     (when (or (eq paths t) (member (cdr place) paths))
       (if (member (list 'file (car place) (cdr place)) qwen-companion-items-toggled)
           (qwen-companion-changes-items--load view)
         (qwen-companion-changes-file-forget view)
         (remhash place qwen-companion-changes-items-views))))
   qwen-companion-changes-items-views))

(defun qwen-companion-changes-items-reload-shown (paths)
  "Reload the visible views of PATHS, if there is a list."
  (when-let* ((buffer (qwen-companion-changes-items-buffer)))
    (with-current-buffer buffer
      (qwen-companion-changes-items-reload paths)
      (qwen-companion-changes-items-update))))

;;; The item at point

(defun qwen-companion-changes-items-group-at-point ()
  "Return the group at point, or signal a `user-error'."
  (or (when-let* ((key (qwen-companion-items-key-at (point))))
        (qwen-companion-changes-items-group-of (cadr key)))
      (user-error "Not on a turn")))

(defun qwen-companion-changes-items-path-at-point ()
  "Return the file at point, or nil on the heading of a turn."
  (pcase (qwen-companion-items-key-at (point))
    (`(,(or 'file 'body) ,_ ,path) path)))

(defun qwen-companion-changes-items-view-at-point (&optional any)
  "Return the view at point, or nil on the heading of a turn or a folded file.
If it is being loaded, wait until it is ready, unless ANY is non-nil."
  (pcase (qwen-companion-items-key-at (point))
    (`(,(or 'file 'body) ,group ,path)
     (when-let* ((view (gethash (cons group path) qwen-companion-changes-items-views)))
       (unless any
         (qwen-companion-changes-items-await-ready view))
       view))))

(defconst qwen-companion-changes-items--patience 2
  "Seconds that a key waits for a file that is being compared again.")

(defun qwen-companion-changes-items-await-ready (view)
  "Wait a moment while VIEW is being loaded; signal a `user-error' if it still is."
  (qwen-companion-changes-items--wait-for view qwen-companion-changes-items--patience)
  (when (eq 'loading (qwen-companion-changes-file-state view))
    (user-error "Still comparing; try again in a moment")))

(defun qwen-companion-changes-items--wait-for (view seconds)
  "Wait while VIEW is being loaded, SECONDS at most."
  (qwen-companion-backend-wait
   (lambda () (not (eq 'loading (qwen-companion-changes-file-state view))))
   seconds))

(defun qwen-companion-changes-items-current-view (view)
  "Return VIEW if its text at point is current; otherwise signal an error.
The error is a `user-error'; the buffer is updated before it."
  (unless (eq (qwen-companion-hunks-view-difference-at (point))
              (qwen-companion-changes-file-difference view))
    (qwen-companion-changes-items-update)
    (user-error "This has just changed; check the new text and try again"))
  view)

(defun qwen-companion-changes-items-targets ()
  "Return the hunk or heading at point, and its file, for Embark."
  (when (qwen-companion-items-key-at (point))
    (let* ((hunk (qwen-companion-hunks-view-hunk-at (point)))
           (bounds (if hunk
                       (qwen-companion-hunks-view-bounds hunk)
                     (cons (line-beginning-position) (line-end-position))))
           (path (qwen-companion-changes-items-path-at-point)))
      `((qwen-companion-change
         ,(save-excursion
            (goto-char (car bounds))
            (string-trim (buffer-substring-no-properties (point) (line-end-position))))
         . ,bounds)
        ,@(and path `((file ,path . ,bounds)))))))

;;; What is shown

(defun qwen-companion-changes-items-forget-views ()
  "Forget all texts."
  (maphash (lambda (_place view) (qwen-companion-changes-file-forget view))
           qwen-companion-changes-items-views)
  (clrhash qwen-companion-changes-items-views)
  (clrhash qwen-companion-changes-items-headings))

;;; Undoing

(defun qwen-companion-changes-items-all-files (group)
  "Return all files of GROUP, seen ones included."
  (if-let* ((turn (qwen-companion-journal-turn (qwen-companion-changes-items-group-turn group))))
      (qwen-companion-turn-files turn)
    (let ((files (qwen-companion-changes-items-group-files group)))
      (and (listp files) files))))

(defun qwen-companion-changes-items--undoings (id)
  "Return each turn that has undone a part of the turn ID, newest first.
Leave out those that are undone themselves."
  (cl-remove t (qwen-companion-journal-undoings id)
             :key #'qwen-companion-changes-items-undone))

(defun qwen-companion-changes-items-undone (turn)
  "Return t when all of TURN is undone, `partly' when only a part, else nil."
  (when-let* ((undoings (qwen-companion-changes-items--undoings (qwen-companion-turn-id turn)))
              (files (qwen-companion-turn-files turn)))
    (let ((back (make-hash-table :test #'equal)))
      (dolist (undoing undoings)
        (dolist (file (qwen-companion-turn-files undoing))
          (pcase-let ((`(,added . ,deleted)
                       (gethash (qwen-companion-changed-file-path file) back '(0 . 0))))
            (puthash (qwen-companion-changed-file-path file)
                     (cons (+ added (qwen-companion-changed-file-added file))
                           (+ deleted (qwen-companion-changed-file-deleted file)))
                     back))))
      (if (cl-every (lambda (file)
                      (qwen-companion-changes-items--file-undone-p
                       file (gethash (qwen-companion-changed-file-path file) back)))
                    files)
          t
        'partly))))

(defun qwen-companion-changes-items--file-undone-p (file back)
  "Return non-nil when BACK, the undone lines, matches the lines of FILE.
BACK is (ADDED . DELETED), or nil if no undoing touches FILE.  For a
renamed file, any undoing counts."
  (and back
       (or (eq 'renamed (qwen-companion-changed-file-kind file))
           (and (= (qwen-companion-changed-file-added file) (cdr back))
                (= (qwen-companion-changed-file-deleted file) (car back))))))

(defun qwen-companion-changes-items-shown-file (group path)
  "Return the file PATH of GROUP."
  (cl-find path (qwen-companion-changes-items-all-files group)
           :key #'qwen-companion-changed-file-path :test #'equal))

;;; Comparing and copying

(defun qwen-companion-changes-items-file-at-point ()
  "Return the group and the file at point, (GROUP . PATH), or signal an error."
  (cons (qwen-companion-changes-items-group-at-point)
        (or (qwen-companion-changes-items-path-at-point)
            (qwen-companion-header-error "Not on a file; \\[qwen-companion-changes-toggle-fold] unfolds a turn"))))

(defun qwen-companion-changes-items-await-view (group path)
  "Return the view of PATH in GROUP when it is loaded."
  (let ((end (+ (float-time) 10))
        view)
    (while (progn
             (setq view (qwen-companion-changes-items--view group path))
             (qwen-companion-changes-items--wait-for view (- end (float-time)))
             ;; A change of the file discards a view that is not shown.
             (and (null (qwen-companion-changes-file-state view))
                  (< (float-time) end))))
    (unless (memq (qwen-companion-changes-file-state view) '(ready binary))
      (user-error "%s: %s" (qwen-companion-untrusted-path path)
                  (or (qwen-companion-changes-file-reason view)
                      "still comparing; try again in a moment")))
    view))

(provide 'qwen-companion-changes-items)
;;; qwen-companion-changes-items.el ends here
