;;; qwen-companion-changes.el --- Everything the agents did, turn by turn  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `qwen-companion-changes' shows what CLIs have changed, by turns or over a
;; longer stretch, whoever approved it and by whatever tool.  Changes are
;; looked at, marked as seen, commented on, undone and brought back: a region
;; of lines, a hunk, a file or a turn.
;;
;; The buffer is made of items (qwen-companion-items.el): the heading of a
;; turn, that of a file, and its hunks.

;;; Code:

(require 'cl-lib)
(require 'diff-mode)
(require 'easymenu)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-changes-file)
(require 'qwen-companion-comments)
(require 'qwen-companion-compare)
(require 'qwen-companion-completion)
(require 'qwen-companion-conflicts)
(require 'qwen-companion-disk)
(require 'qwen-companion-header)
(require 'qwen-companion-hunks)
(require 'qwen-companion-hunks-view)
(require 'qwen-companion-items)
(require 'qwen-companion-journal)
(require 'qwen-companion-layer)
(require 'qwen-companion-messages)
(require 'qwen-companion-prompts)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-undo)
(require 'qwen-companion-untrusted)

(defface qwen-companion-changes-turn
  '((t :inherit bold))
  "Face of the prompt that began a turn."
  :group 'qwen-companion)

(defface qwen-companion-changes-label
  '((t :inherit shadow))
  "Face of notes about a turn or a file."
  :group 'qwen-companion)

(defconst qwen-companion-changes--buffer-name "*qwen-companion changes*")

(defconst qwen-companion-changes--chunk 30
  "Most headings of files that are made at once: about 2 ms of work.")

(defconst qwen-companion-changes--pause 0.01
  "Seconds until more of them are made, in which keys are handled.")

(defconst qwen-companion-changes--delay 0.1
  "Seconds during which news are collected before the buffer is updated.")

(defconst qwen-companion-changes--page-lines 1000
  "Lines of a file after which no more hunks are shown until RET asks for them.")

(defconst qwen-companion-changes--context 3
  "Lines of context around hunks at first.")

(cl-defstruct (qwen-companion-changes--group
               (:constructor qwen-companion-changes--make-group)
               (:copier nil))
  "Files that are shown below one heading.
ID is a turn's id, or a list (SCOPE ROOT).  SCOPE, TURN and SESSION are
the part of the journal; ROOT is the workspace root, and FILES is a
list in the form of `qwen-companion-changed-file-path'."
  id scope turn session root files)

(cl-defstruct (qwen-companion-changes--comment
               (:constructor qwen-companion-changes--make-comment)
               (:copier nil))
  "A comment on a line.
GROUP and PATH are where the line is shown; ROOT is the workspace root.
SOURCE is the kind of line with its numbers in both texts, (KIND OLD
. NEW).  LINE is its text with the sign, TEXT the user's comment."
  group path root source line text)

(defvar-local qwen-companion-changes--scope 'turns
  "The visible scope: `turns', `look', `commit', (since TURN) or (session ID).")
(defvar-local qwen-companion-changes--client nil
  "The client whose turns are shown, a string, or nil for all.")
(defvar-local qwen-companion-changes--all nil
  "Non-nil to include changes that were already seen when the buffer was opened.")
(defvar-local qwen-companion-changes--seen nil
  "Hash table of changes seen then: (TURN . PATH) to t or a list of keys.")
(defvar-local qwen-companion-changes--fresh nil
  "Non-nil until turns have been shown: the newest one is unfolded then.")
(defvar-local qwen-companion-changes--views nil
  "Hash table of the `qwen-companion-changes-file's by (GROUP . PATH).")
(defvar-local qwen-companion-changes--headings nil
  "Hash table of the headings of files, by (GROUP . PATH).
Each is (FILE OPEN UNDONE . ITEM).  Updating a thousand files would spend
its time on making them anew.")
(defvar-local qwen-companion-changes--room nil
  "How many headings of files may still be made in the update that goes on.
Below 0, some are missing, or not as they should be.")
(defvar-local qwen-companion-changes--nets nil
  "Alist of roots and the files that the journal has told for the scope.
The cdr is a list of files, or a string, the reason why there is none.")
(defvar-local qwen-companion-changes--net-request nil
  "Number of the last request for the files of the scope.")
(defvar-local qwen-companion-changes--lines qwen-companion-changes--context
  "Lines of context around hunks.")
(defvar-local qwen-companion-changes--whole nil
  "Keys of the files all of whose hunks are shown.")
(defvar-local qwen-companion-changes--comments nil
  "The comments that have not been sent.")
(defvar-local qwen-companion-changes--unmarked nil
  "Where point was when an update had changed the marked lines, or nil.")
(defvar-local qwen-companion-changes--arrows nil
  "Non-nil when the signs of headings can be displayed.")

;;; What is to be shown

(defun qwen-companion-changes--buffer ()
  "Return the buffer of this mode, or nil."
  (get-buffer qwen-companion-changes--buffer-name))

(defun qwen-companion-changes--shown-turns ()
  "Return each turn of the client that is shown, newest first."
  (cl-remove-if-not
   (lambda (turn)
     (and (or (null qwen-companion-changes--client)
              (equal qwen-companion-changes--client (qwen-companion-turn-client turn))
              (eq 'user (qwen-companion-turn-who turn)))
          (or (qwen-companion-turn-files turn)
              (qwen-companion-turn-notes turn)
              (null (qwen-companion-turn-end turn)))))
   (qwen-companion-journal-turns)))

(defun qwen-companion-changes--groups ()
  "Return the groups to show in order."
  (if (eq qwen-companion-changes--scope 'turns)
      (delq nil (mapcar #'qwen-companion-changes--turn-group
                        (qwen-companion-changes--shown-turns)))
    (mapcar
     (pcase-lambda (`(,root . ,files))
       (qwen-companion-changes--make-group
        :id (list qwen-companion-changes--scope root)
        :scope (car (ensure-list qwen-companion-changes--scope))
        :turn (and (eq 'since (car-safe qwen-companion-changes--scope))
                   (cadr qwen-companion-changes--scope))
        :session (and (eq 'session (car-safe qwen-companion-changes--scope))
                      (cadr qwen-companion-changes--scope))
        :root root
        :files files))
     qwen-companion-changes--nets)))

(defun qwen-companion-changes--turn-group (turn)
  "Return the unseen part of the group of TURN, or nil if all is seen."
  (let* ((id (qwen-companion-turn-id turn))
         (files (qwen-companion-turn-files turn))
         (shown (cl-remove-if
                 (lambda (file)
                   (and (not qwen-companion-changes--all)
                        (eq t (gethash (cons id (qwen-companion-changed-file-path file))
                                       qwen-companion-changes--seen))))
                 files)))
    (when (or shown (null files))
      (qwen-companion-changes--make-group
       :id id :scope 'turn :turn id :session (qwen-companion-turn-session turn)
       :root (qwen-companion-turn-root turn) :files shown))))

(defun qwen-companion-changes--note-seen ()
  "Hide each change that is marked as seen by now."
  (setq qwen-companion-changes--seen (make-hash-table :test #'equal))
  (dolist (turn (qwen-companion-journal-turns))
    (dolist (file (qwen-companion-turn-files turn))
      (puthash (cons (qwen-companion-turn-id turn)
                     (qwen-companion-changed-file-path file))
               (or (and (qwen-companion-changed-file-seen file) t)
                   (qwen-companion-changed-file-seen-hunks file))
               qwen-companion-changes--seen))))

(defun qwen-companion-changes--seen-keys (group path &optional now)
  "Return the keys of the hunks seen in PATH of GROUP when the buffer opened.
With NOW non-nil, return those seen by now."
  (let ((turn (qwen-companion-changes--group-turn group)))
    (if (and turn (eq 'turn (qwen-companion-changes--group-scope group)) (not now))
        (let ((seen (gethash (cons turn path) qwen-companion-changes--seen)))
          (and (listp seen) seen))
      (cl-loop for turn in (qwen-companion-journal-turns)
               for file = (qwen-companion-changes--file-of turn path)
               append (qwen-companion-changed-file-seen-hunks file)))))

(defun qwen-companion-changes--file-of (turn path)
  "Return the file PATH of TURN, or nil."
  (cl-find path (qwen-companion-turn-files turn)
           :key #'qwen-companion-changed-file-path :test #'equal))

(defun qwen-companion-changes--roots ()
  "Return the root of each turn, each root once."
  (delete-dups (mapcar #'qwen-companion-turn-root (qwen-companion-journal-turns))))

(defun qwen-companion-changes--request-nets ()
  "Ask for the files of the scope, unless each turn is shown by itself."
  (let ((scope qwen-companion-changes--scope)
        (buffer (current-buffer))
        (number (setq qwen-companion-changes--net-request
                      (1+ (or qwen-companion-changes--net-request 0)))))
    (unless (eq scope 'turns)
      (dolist (root (if-let* ((turn (and (eq 'since (car-safe scope))
                                         (qwen-companion-journal-turn (cadr scope)))))
                        (list (qwen-companion-turn-root turn))
                      (qwen-companion-changes--roots)))
        (qwen-companion-journal-ask
         'journal-files
         (list :root root
               :scope (car (ensure-list scope))
               :turn (and (eq 'since (car-safe scope)) (cadr scope))
               :session (and (eq 'session (car-safe scope)) (cadr scope)))
         (lambda (reply)
           (when (buffer-live-p buffer)
             (with-current-buffer buffer
               (when (= number qwen-companion-changes--net-request)
                 (setf (alist-get root qwen-companion-changes--nets nil nil #'equal)
                       (or (qwen-companion-journal-error reply)
                           (qwen-companion-journal-reply-files reply)))
                 (qwen-companion-changes--update))))))))))

;;; In words

(defun qwen-companion-changes--arrow (key)
  "Return the sign of the heading KEY: is it unfolded?"
  (let ((open (member key qwen-companion-items-toggled)))
    (if qwen-companion-changes--arrows
        (if open "▾ " "▸ ")
      (if open "v " "> "))))

(defun qwen-companion-changes--label (text)
  "Return TEXT in the face of labels."
  (propertize text 'face 'qwen-companion-changes-label))

(defun qwen-companion-changes--counts (files)
  "Return how many lines were added and deleted in FILES, as text."
  (concat
   (propertize (format "+%d" (apply #'+ (mapcar #'qwen-companion-changed-file-added files)))
               'face 'diff-indicator-added)
   " "
   (propertize (format "-%d" (apply #'+ (mapcar #'qwen-companion-changed-file-deleted files)))
               'face 'diff-indicator-removed)))

(defun qwen-companion-changes--pad (text width)
  "Return TEXT filled up with blanks to WIDTH columns."
  (concat text (make-string (max 0 (- width (string-width text))) ?\s)))

(defun qwen-companion-changes--time (milliseconds)
  "Return the time MILLISECONDS as text, with the day if it is not today's."
  (let ((time (seconds-to-time (/ milliseconds 1000.0))))
    (if (equal (format-time-string "%F" time) (format-time-string "%F"))
        (format-time-string "%H:%M" time)
      (format-time-string "%m-%d %H:%M" time))))

(defun qwen-companion-changes--heading (group)
  "Return the heading of GROUP."
  (let* ((id (qwen-companion-changes--group-id group))
         (files (qwen-companion-changes--group-files group))
         (files (and (listp files) files))
         (turn (and (stringp id) (qwen-companion-journal-turn id))))
    (concat
     (propertize
      (concat
       (qwen-companion-changes--arrow (list 'group id))
       (when turn
         (concat (qwen-companion-changes--time (qwen-companion-turn-start turn)) "  "))
       (qwen-companion-changes--pad (qwen-companion-changes--counts files) 9)
       (qwen-companion-changes--label
        (format "  %d file%s  " (length files) (if (= 1 (length files)) " " "s")))
       (if turn
           (qwen-companion-changes--turn-words turn files)
         (propertize (qwen-companion-changes--scope-words)
                     'face 'qwen-companion-changes-turn))
       (when (cdr (qwen-companion-changes--roots))
         (qwen-companion-changes--label
          (concat "  " (file-name-nondirectory
                        (directory-file-name
                         (qwen-companion-untrusted-path
                          (qwen-companion-changes--group-root group))))))))
      'mouse-face 'highlight 'follow-link t)
     "\n")))

(defun qwen-companion-changes--turn-words (turn files)
  "Return the heading of TURN without the numbers; FILES are shown."
  (let ((client (qwen-companion-turn-client turn))
        (prompt (qwen-companion-untrusted-line (or (qwen-companion-turn-prompt turn) ""))))
    (concat
     (qwen-companion-changes--label
      (concat (cond ((eq 'user (qwen-companion-turn-who turn)) "you")
                    ((string-empty-p (or client "")) "a CLI")
                    (t (car (split-string (qwen-companion-untrusted-line client)
                                          " [0-9]"))))
              "  "))
     (cond ((null (qwen-companion-turn-end turn))
            (propertize "working  " 'face 'warning))
           (t (pcase (qwen-companion-changes--undone turn)
                ('partly (propertize "partly undone  " 'face 'warning))
                ('t (propertize "undone  " 'face 'warning)))))
     (propertize (if (string-empty-p prompt) "(no prompt)" prompt)
                 'face (if (and files (cl-every #'qwen-companion-changed-file-seen files))
                           'qwen-companion-changes-label
                         'qwen-companion-changes-turn))
     (when (and files (cl-every #'qwen-companion-changed-file-seen files))
       (qwen-companion-changes--label "  seen")))))

(defun qwen-companion-changes--scope-words ()
  "Return the name of the visible scope."
  (pcase qwen-companion-changes--scope
    ('turns "Turns")
    ('look "Not seen yet")
    ('commit "Since the last commit")
    (`(session ,_) "This session")
    (`(since ,id)
     (let ((prompt (qwen-companion-untrusted-line
                    (or (qwen-companion-turn-prompt (qwen-companion-journal-turn id))
                        ""))))
       (concat "Since: " (truncate-string-to-width prompt 40 nil nil t))))))

(defun qwen-companion-changes--name (path root)
  "Return PATH below ROOT for a reader."
  (let ((root (file-name-as-directory root)))
    (qwen-companion-untrusted-text
     (if (string-prefix-p root path)
         (substring path (length root))
       (abbreviate-file-name path)))))

(defun qwen-companion-changes--file-heading (group file)
  "Return the item of the heading of FILE in GROUP.
Make it only if something of it is new.  If too many have been made, it
may be an old one, or nil."
  (let* ((path (qwen-companion-changed-file-path file))
         (place (cons (qwen-companion-changes--group-id group) path))
         (view (and (> (hash-table-count qwen-companion-changes--views) 0)
                    (gethash place qwen-companion-changes--views)))
         (undone (and view (qwen-companion-changes-file-undone view)))
         (known (gethash place qwen-companion-changes--headings))
         (key (if known (nth 3 known) (qwen-companion-changes--file-key group path)))
         (open (and (member key qwen-companion-items-toggled) t)))
    (pcase known
      (`(,(pred (eq file)) ,(pred (eq open)) ,(pred (eq undone)) . ,item)
       item)
      ((guard (or open (> (cl-decf qwen-companion-changes--room) -1)))
       (let* ((text (qwen-companion-changes--make-file-heading group file undone))
              (item (cons key (cons text text))))
         (puthash place (cons file (cons open (cons undone item)))
                  qwen-companion-changes--headings)
         item))
      (_ (cdddr known)))))

(defun qwen-companion-changes--make-file-heading (group file undone)
  "Return a new heading of FILE in GROUP; UNDONE is non-nil if all of it is."
  (let* ((path (qwen-companion-changed-file-path file))
         (root (qwen-companion-changes--group-root group))
         (key (qwen-companion-changes--file-key group path))
         (tools (delete-dups (mapcar #'car (qwen-companion-changed-file-by file)))))
    (concat
     (propertize
      (concat
       "  " (qwen-companion-changes--arrow key)
       (propertize (qwen-companion-changes--name path root)
                   'face (if (qwen-companion-changed-file-seen file)
                             'qwen-companion-changes-label
                           'diff-file-header))
       "  "
       (pcase (qwen-companion-changed-file-kind file)
         ('added (propertize "new  " 'face 'diff-indicator-added))
         ('deleted (propertize "deleted  " 'face 'diff-indicator-removed))
         ('renamed
          (concat "was " (qwen-companion-changes--name
                          (or (qwen-companion-changed-file-from file) "?") root)
                  "  "))
         ('mode "mode  "))
       (if (qwen-companion-changed-file-binary file)
           "not a text"
         (qwen-companion-changes--counts (list file)))
       (qwen-companion-changes--label
        (concat
         (when tools
           (concat "  " (qwen-companion-untrusted-line (string-join tools ", "))))
         (when (cl-some #'cadr (qwen-companion-changed-file-by file)) " (subagent)")
         (when (qwen-companion-changed-file-mixed file) "  with edits of yours")
         (when (qwen-companion-changed-file-seen file) "  seen")))
       (when undone
         (propertize "  undone" 'face 'warning)))
      'mouse-face 'highlight 'follow-link t)
     "\n")))

(defvar qwen-companion-changes--drawn nil
  "The file being drawn, (VIEW . KEYS); KEYS identify its seen hunks.")

(defun qwen-companion-changes--hunk-note (difference hunk)
  "Return a note for the header of HUNK of DIFFERENCE, or nil."
  (pcase-let ((`(,view . ,keys) (or qwen-companion-changes--drawn
                                    (qwen-companion-changes--drawing))))
    (concat
     (when (qwen-companion-hunks-dropped-p hunk)
       (propertize " undone, u brings it back" 'face 'warning))
     (when (and view
                (eq difference (qwen-companion-changes-file-difference view))
                (qwen-companion-changes--hunk-seen-p view hunk keys))
       (qwen-companion-changes--label " seen")))))

(defun qwen-companion-changes--drawing ()
  "Return the value of `qwen-companion-changes--drawn' for the file at point."
  (pcase (qwen-companion-items-key-at (point))
    (`(,(or 'file 'body) ,group ,path)
     (cons (gethash (cons group path) qwen-companion-changes--views)
           (qwen-companion-changes--seen-keys
            (qwen-companion-changes--group-of group) path t)))))

(defun qwen-companion-changes--hunk-seen-p (view hunk keys)
  "Return non-nil when KEYS has that of each change in HUNK of VIEW."
  (and keys
       (cl-every (lambda (change)
                   (member (qwen-companion-changes-file-key view change) keys))
                 (qwen-companion-hunks-hunk-changes hunk))))

;;; Items

(defun qwen-companion-changes--file-key (group path)
  "Return the key of the heading of PATH in GROUP."
  (list 'file (qwen-companion-changes--group-id group) path))

(defun qwen-companion-changes--group-of (id)
  "Return the group ID that is shown, or nil."
  (cl-find id (qwen-companion-changes--groups)
           :key #'qwen-companion-changes--group-id :test #'equal))

(defun qwen-companion-changes--wanted-items ()
  "Return the items to show: a list of (KEY SIGNATURE . INSERT).
INSERT is a text, or a function that inserts one at point."
  (let ((groups (qwen-companion-changes--groups)))
    (when (and qwen-companion-changes--fresh groups)
      (setq qwen-companion-changes--fresh nil)
      (push (list 'group (qwen-companion-changes--group-id (car groups)))
            qwen-companion-items-toggled))
    (nconc (qwen-companion-changes--problem-items)
           (or (mapcan #'qwen-companion-changes--group-items groups)
               (let ((text (concat (qwen-companion-changes--nothing) "\n")))
                 (list (cons '(nothing) (cons text text))))))))

(defun qwen-companion-changes--problem-items ()
  "Return an item for each root that is not recorded."
  (mapcar (lambda (line)
            (let ((text (propertize (concat line "\n") 'face 'warning)))
              (cons (list 'problem line) (cons text text))))
          (qwen-companion-journal-problems)))

(defun qwen-companion-changes--nothing ()
  "Return why there is nothing to show."
  (cond
   ((not (eq 'ready (qwen-companion-state)))
    (format "The companion is not ready (%s)." (qwen-companion-state)))
   ((not (eq qwen-companion-changes--scope 'turns))
    (if qwen-companion-changes--nets "Nothing was changed." "Asking..."))
   ((hash-table-empty-p qwen-companion-changes--seen)
    "No CLI has changed a file yet.")
   (t "All changes have been seen; v a shows them.")))

(defun qwen-companion-changes--group-items (group)
  "Return the items of GROUP.
They are as in `qwen-companion-changes--wanted-items'."
  (let* ((id (qwen-companion-changes--group-id group))
         (key (list 'group id))
         (heading (qwen-companion-changes--heading group))
         (files (qwen-companion-changes--group-files group))
         (turn (and (stringp id) (qwen-companion-journal-turn id))))
    (cons
     (cons key (cons heading heading))
     (when (member key qwen-companion-items-toggled)
       (append
        (cl-loop for note in (qwen-companion-turn-notes turn)
                 for text = (qwen-companion-changes--label
                             (concat "    " (qwen-companion-untrusted-line note) "\n"))
                 collect (cons (list 'note id note) (cons text text)))
        (if (stringp files)
            (let ((text (concat "    " files "\n")))
              (list (cons (list 'note id files) (cons text text))))
          (mapcan (lambda (file)
                    (qwen-companion-changes--file-items group file))
                  files)))))))

(defun qwen-companion-changes--file-items (group file)
  "Return the items of FILE in GROUP."
  (when-let* ((heading (qwen-companion-changes--file-heading group file))
              (key (car heading))
              (path (qwen-companion-changed-file-path file)))
    (cons
     heading
     (when (member key qwen-companion-items-toggled)
       (let* ((view (qwen-companion-changes--view group path))
              (body (list 'body (qwen-companion-changes--group-id group) path))
              (drawn (qwen-companion-items-signature body)))
         (list
          (cons body
                (cons (if (and drawn (eq 'loading (qwen-companion-changes-file-state view)))
                          ;; The shown hunks stay until the new ones have come.
                          drawn
                        (list (qwen-companion-changes-file-signature view)
                              qwen-companion-changes--lines
                              qwen-companion-changes--all
                              (and (member key qwen-companion-changes--whole) t)
                              (qwen-companion-changes--seen-keys group path)
                              (qwen-companion-changes--seen-keys group path t)))
                      (lambda ()
                        (qwen-companion-changes--insert-body group view))))))))))

(defun qwen-companion-changes--view (group path)
  "Return the texts of PATH in GROUP; they are asked for if they are not there."
  (let ((place (cons (qwen-companion-changes--group-id group) path)))
    (or (gethash place qwen-companion-changes--views)
        (let ((view (make-qwen-companion-changes-file
                     :root (qwen-companion-changes--group-root group)
                     :path path
                     :from (qwen-companion-changed-file-from
                            (qwen-companion-changes--shown-file group path))
                     :scope (qwen-companion-changes--group-scope group)
                     :turn (qwen-companion-changes--group-turn group)
                     :session (qwen-companion-changes--group-session group))))
          (puthash place view qwen-companion-changes--views)
          (qwen-companion-changes--load view)
          view))))

(defun qwen-companion-changes--load (view)
  "Load VIEW, which is shown in the current buffer, and update it then."
  (let ((buffer (current-buffer)))
    (qwen-companion-changes-file-load
     view
     (lambda ()
       (when (buffer-live-p buffer)
         (with-current-buffer buffer
           (qwen-companion-changes--update-soon)))))))

(defun qwen-companion-changes--insert-body (group view)
  "Insert the hunks of VIEW in GROUP, or why there are none."
  (pcase (qwen-companion-changes-file-state view)
    ('ready (qwen-companion-changes--insert-hunks group view))
    ('failed
     (insert (propertize (format "    %s; g tries again\n"
                                 (qwen-companion-changes-file-reason view))
                         'face 'warning)))
    ('binary
     (insert (qwen-companion-changes--label
              (format "    Not a text: %s, was %s.  k undoes all of it.\n"
                      (qwen-companion-changes--size
                       (qwen-companion-changes-file-after view))
                      (qwen-companion-changes--size
                       (qwen-companion-changes-file-before view))))))
    (_ (insert (qwen-companion-changes--label "    Comparing...\n")))))

(defun qwen-companion-changes--size (bytes)
  "Return how long BYTES are, in words; nil means that there was no file."
  (if bytes (format "%d bytes" (length bytes)) "not there"))

(defun qwen-companion-changes--hunks (group view)
  "Return (SHOWN . COUNT): the hunks of VIEW in GROUP, and how many were seen."
  (let* ((difference (qwen-companion-changes-file-difference view))
         (all (qwen-companion-hunks-group
               (qwen-companion-hunks-changes difference)
               qwen-companion-changes--lines
               (qwen-companion-hunks-line-count
                (qwen-companion-hunks-old difference))))
         (keys (and (not qwen-companion-changes--all)
                    (qwen-companion-changes--seen-keys
                     group (qwen-companion-changes-file-path view))))
         (shown (cl-remove-if (lambda (hunk)
                                (qwen-companion-changes--hunk-seen-p view hunk keys))
                              all)))
    (cons shown (- (length all) (length shown)))))

(defun qwen-companion-changes--insert-hunks (group view)
  "Insert the hunks of VIEW in GROUP."
  (pcase-let* ((difference (qwen-companion-changes-file-difference view))
               (path (qwen-companion-changes-file-path view))
               (key (qwen-companion-changes--file-key group path))
               (`(,hunks . ,seen) (qwen-companion-changes--hunks group view))
               (qwen-companion-changes--drawn
                (cons view (qwen-companion-changes--seen-keys group path t)))
               (limit (if (member key qwen-companion-changes--whole)
                          most-positive-fixnum
                        qwen-companion-changes--page-lines))
               (lines 0))
    (when (and (null hunks) (= seen 0))
      (insert (qwen-companion-changes--label
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
       (format "%d more hunk%s: RET here shows them"
               (length hunks) (if (cdr hunks) "s" ""))
       (lambda ()
         (push key qwen-companion-changes--whole)
         (qwen-companion-changes--update))))
    (when (> seen 0)
      (insert (qwen-companion-changes--label
               (format "    %d hunk%s seen: v a shows %s\n" seen
                       (if (= seen 1) "" "s") (if (= seen 1) "it" "them")))))))

;;; Updating

(defun qwen-companion-changes--update-soon ()
  "Update the current buffer in a moment if it is in a window."
  (qwen-companion-timers-update-soon qwen-companion-changes--delay))

(defun qwen-companion-changes--update ()
  "Bring the current buffer up to date.
Only what has changed is replaced; point, the mark and the windows stay.
Of very many files, some come in a moment."
  (setq qwen-companion-changes--room qwen-companion-changes--chunk)
  (let ((wanted (qwen-companion-changes--wanted-items)))
    (when (< qwen-companion-changes--room 0)
      (qwen-companion-timers-update-soon qwen-companion-changes--pause))
    (let ((marked (qwen-companion-changes--marked-text)))
      (when (qwen-companion-items-update
             wanted
             (lambda ()
               (qwen-companion-changes--show-all-comments)
               (qwen-companion-untrusted-show-bidi-controls)))
        (set-buffer-modified-p nil)
        (unless (equal marked (qwen-companion-changes--marked-text))
          (deactivate-mark)
          (setq qwen-companion-changes--unmarked (point)))))))

(defun qwen-companion-changes--marked-text ()
  "Return the text of the active region, or nil."
  (and (use-region-p)
       (buffer-substring-no-properties (region-beginning) (region-end))))

(defun qwen-companion-changes--changed (paths)
  "Update the visible part of PATHS, a list of files, or of all files if t."
  (when-let* ((buffer (qwen-companion-changes--buffer)))
    (with-current-buffer buffer
      (when (and (eq paths t) (hash-table-empty-p qwen-companion-changes--seen))
        (qwen-companion-changes--note-seen))
      (qwen-companion-changes--reload paths)
      (qwen-companion-changes--request-nets)
      (qwen-companion-changes--update-soon))))

(defun qwen-companion-changes--reload (paths)
  "Reload the visible part of PATHS, or of all if t; forget the hidden part."
  (maphash
   (lambda (place view)
     (when (or (eq paths t) (member (cdr place) paths))
       (if (member (list 'file (car place) (cdr place)) qwen-companion-items-toggled)
           (qwen-companion-changes--load view)
         (qwen-companion-changes-file-forget view)
         (remhash place qwen-companion-changes--views))))
   qwen-companion-changes--views))

(defun qwen-companion-changes--state-changed (state)
  "Show that STATE is that of the companion now; close when it is off."
  (if (eq state 'off)
      (qwen-companion-changes-close)
    (when-let* ((buffer (qwen-companion-changes--buffer)))
      (with-current-buffer buffer
        (qwen-companion-changes--update-soon)))))

;;; What is at point

(defun qwen-companion-changes--group-at-point ()
  "Return the group at point, or signal a `user-error'."
  (or (when-let* ((key (qwen-companion-items-key-at (point))))
        (qwen-companion-changes--group-of (cadr key)))
      (user-error "There is no turn here")))

(defun qwen-companion-changes--path-at-point ()
  "Return the file at point, or nil on the heading of a turn."
  (pcase (qwen-companion-items-key-at (point))
    (`(,(or 'file 'body) ,_ ,path) path)))

(defun qwen-companion-changes--view-at-point (&optional any)
  "Return the view at point, or nil on the heading of a turn or a folded file.
If it is being loaded, wait for that, unless ANY is non-nil."
  (pcase (qwen-companion-items-key-at (point))
    (`(,(or 'file 'body) ,group ,path)
     (when-let* ((view (gethash (cons group path) qwen-companion-changes--views)))
       (unless any
         (qwen-companion-changes--await-ready view))
       view))))

(defconst qwen-companion-changes--patience 2
  "Seconds that a key waits for a file that is being looked at again.")

(defun qwen-companion-changes--await-ready (view)
  "Wait a moment while VIEW is being loaded; signal a `user-error' if it still is."
  (qwen-companion-changes--wait-for view qwen-companion-changes--patience)
  (when (eq 'loading (qwen-companion-changes-file-state view))
    (user-error "Still comparing; try again in a moment")))

(defun qwen-companion-changes--wait-for (view seconds)
  "Wait while VIEW is being loaded, SECONDS at most."
  (qwen-companion-backend-wait
   (lambda () (not (eq 'loading (qwen-companion-changes-file-state view))))
   seconds))

(defun qwen-companion-changes--current-view (view)
  "Return VIEW if its text at point is current; otherwise signal an error.
The error is a `user-error'; the buffer is updated before it."
  (unless (eq (qwen-companion-hunks-view-difference-at (point))
              (qwen-companion-changes-file-difference view))
    (qwen-companion-changes--update)
    (user-error "This has just changed; look at what is shown now"))
  view)

(defun qwen-companion-changes--targets ()
  "Return the hunk or heading at point, and its file, for Embark."
  (when (qwen-companion-items-key-at (point))
    (let* ((hunk (qwen-companion-hunks-view-hunk-at (point)))
           (bounds (if hunk
                       (qwen-companion-hunks-view-bounds hunk)
                     (cons (line-beginning-position) (line-end-position))))
           (path (qwen-companion-changes--path-at-point)))
      `((qwen-companion-change
         ,(save-excursion
            (goto-char (car bounds))
            (string-trim (buffer-substring-no-properties (point) (line-end-position))))
         . ,bounds)
        ,@(and path `((file ,path . ,bounds)))))))

;;; Moving and folding

(defun qwen-companion-changes--starts ()
  "Return the positions of the headings and hunks, from the top."
  (let (starts)
    (pcase-dolist (`(,key ,start . ,_) (qwen-companion-items-bounds))
      (when (memq (car key) '(group file))
        (push start starts)))
    (save-excursion
      (goto-char (point-min))
      (when (qwen-companion-hunks-view-hunk-at (point))
        (push (point) starts))
      (while (qwen-companion-hunks-view-goto-hunk (point) nil)
        (push (point) starts)))
    (sort starts #'<)))

(defun qwen-companion-changes-next (&optional count)
  "Go to the next turn, file or hunk, or COUNT of them on."
  (interactive "p" qwen-companion-changes-mode)
  (let ((count (or count 1)))
    (dotimes (_ (abs count))
      (goto-char
       (or (if (> count 0)
               (cl-find-if (lambda (start) (> start (point)))
                           (qwen-companion-changes--starts))
             (cl-find-if (lambda (start) (< start (point)))
                         (reverse (qwen-companion-changes--starts))))
           (user-error "There is nothing %s"
                       (if (> count 0) "below" "above")))))))

(defun qwen-companion-changes-previous (&optional count)
  "Go to the previous turn, file or hunk, or COUNT of them back."
  (interactive "p" qwen-companion-changes-mode)
  (qwen-companion-changes-next (- (or count 1))))

(defun qwen-companion-changes-toggle-fold ()
  "Fold or unfold the turn or file at point."
  (interactive nil qwen-companion-changes-mode)
  (let ((key (pcase (qwen-companion-items-key-at (point))
               ((and `(,(or 'group 'file) . ,_) key) key)
               (`(body ,group ,path) (list 'file group path))
               (`(note ,group ,_) (list 'group group))
               (_ (user-error "There is nothing to fold here")))))
    (qwen-companion-items-toggle key)
    (qwen-companion-changes--update)))

(defun qwen-companion-changes-visit ()
  "Visit the line at point in its file, in another window.
On the heading of a turn, fold or unfold it; on a button, push it."
  (interactive nil qwen-companion-changes-mode)
  (if-let* ((press (get-text-property (point) 'qwen-companion-hunks-view-action)))
      (funcall press)
    (if-let* ((path (qwen-companion-changes--path-at-point)))
        (let* ((hunk (qwen-companion-hunks-view-hunk-at (point)))
               (line (and hunk (cdr (qwen-companion-hunks-view-lines-at))))
               (text (and hunk
                          (memq (car-safe (qwen-companion-hunks-view-source-at (point)))
                                '(context added))
                          (buffer-substring-no-properties
                           (min (line-end-position) (1+ (line-beginning-position)))
                           (line-end-position)))))
          (unless (file-exists-p path)
            (user-error "%s is not there any more; k undoes a deletion"
                        (qwen-companion-untrusted-path path)))
          (pop-to-buffer (find-file-noselect path))
          (when line
            (qwen-companion-changes--goto-line line text)))
      (qwen-companion-changes-toggle-fold))))

(defun qwen-companion-changes-describe ()
  "Say the hunk at point in words, for ears and for eyes that see no colours."
  (interactive nil qwen-companion-changes-mode)
  (let ((hunk (or (qwen-companion-hunks-view-hunk-at (point))
                  (user-error "There is no hunk here; TAB unfolds a file")))
        (difference (qwen-companion-hunks-view-difference-at (point))))
    (qwen-companion-changes--current-view (qwen-companion-changes--view-at-point))
    (message "%s%s"
             (if (qwen-companion-hunks-dropped-p hunk) "Undone.  " "")
             (mapconcat (lambda (change)
                          (qwen-companion-hunks-view-describe difference change))
                        (qwen-companion-hunks-hunk-changes hunk) "  "))))

(defun qwen-companion-changes-visit-clicked (event)
  "Fold, unfold or visit the item clicked with EVENT."
  (interactive "e" qwen-companion-changes-mode)
  (mouse-set-point event)
  (if (memq (car-safe (qwen-companion-items-key-at (point))) '(file note))
      (qwen-companion-changes-toggle-fold)
    (qwen-companion-changes-visit)))

(defun qwen-companion-changes--goto-line (line text)
  "Go to LINE of the current buffer, or to the nearest with TEXT if that moved."
  (widen)
  (push-mark nil t)
  (goto-char (point-min))
  (forward-line (1- line))
  (when text
    (let* ((pattern (concat "^" (regexp-quote text) "$"))
           (case-fold-search nil)
           (below (save-excursion (and (re-search-forward pattern nil t)
                                       (match-beginning 0))))
           (above (save-excursion (and (re-search-backward pattern nil t)
                                       (match-beginning 0)))))
      (cond ((and below above)
             (goto-char (if (< (- (point) above) (- below (point))) above below)))
            ((or below above) (goto-char (or below above)))))))

;;; What is shown

(defun qwen-companion-changes--show (scope)
  "Show SCOPE, see `qwen-companion-changes--scope'."
  (unless (equal scope qwen-companion-changes--scope)
    (qwen-companion-changes--forget-views)
    (setq qwen-companion-changes--scope scope
          qwen-companion-changes--nets nil
          qwen-companion-changes--fresh t))
  (qwen-companion-changes--request-nets)
  (qwen-companion-changes--update)
  (qwen-companion-changes--update-header))

(defun qwen-companion-changes--forget-views ()
  "Forget all texts."
  (maphash (lambda (_place view) (qwen-companion-changes-file-forget view))
           qwen-companion-changes--views)
  (clrhash qwen-companion-changes--views)
  (clrhash qwen-companion-changes--headings))

(defun qwen-companion-changes--turn-at-point ()
  "Return the turn at point, else the newest one of an agent."
  (or (let ((id (cadr (qwen-companion-items-key-at (point)))))
        (and (stringp id) (qwen-companion-journal-turn id)))
      (cl-find 'agent (qwen-companion-changes--shown-turns)
               :key #'qwen-companion-turn-who)
      (user-error "No CLI has changed a file yet")))

(defun qwen-companion-changes-show-turns ()
  "Show each turn by itself."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--show 'turns))

(defun qwen-companion-changes-show-since ()
  "Show each change since the turn at point began, or the newest one."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--show
   (list 'since (qwen-companion-turn-id (qwen-companion-changes--turn-at-point)))))

(defun qwen-companion-changes-show-session ()
  "Show each change in the session of the turn at point, or the newest one."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--show
   (list 'session (qwen-companion-turn-session (qwen-companion-changes--turn-at-point)))))

(defun qwen-companion-changes-show-unseen ()
  "Show each change that is not marked as seen."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--show 'look))

(defun qwen-companion-changes-show-since-commit ()
  "Show all differences from the last commit, the user's included."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--show 'commit))

(defun qwen-companion-changes-toggle-seen ()
  "Toggle the display of each change that is marked as seen."
  (interactive nil qwen-companion-changes-mode)
  (setq qwen-companion-changes--all (not qwen-companion-changes--all))
  (unless qwen-companion-changes--all
    (qwen-companion-changes--note-seen))
  (qwen-companion-changes--update)
  (qwen-companion-changes--update-header)
  (message (if qwen-companion-changes--all "Seen changes are shown too"
             "Only unseen changes are shown")))

(defun qwen-companion-changes-toggle-client ()
  "Show each turn of the CLI at point only, or of all CLIs."
  (interactive nil qwen-companion-changes-mode)
  (setq qwen-companion-changes--client
        (and (not qwen-companion-changes--client)
             (qwen-companion-turn-client (qwen-companion-changes--turn-at-point))))
  (qwen-companion-changes--update)
  (qwen-companion-changes--update-header))

(defun qwen-companion-changes-more-context (&optional count)
  "Show COUNT more lines of context around the hunks, one by default."
  (interactive "p" qwen-companion-changes-mode)
  (setq qwen-companion-changes--lines
        (max 0 (+ qwen-companion-changes--lines (or count 1))))
  (qwen-companion-changes--update)
  (message "%d lines of context" qwen-companion-changes--lines))

(defun qwen-companion-changes-less-context (&optional count)
  "Show COUNT fewer lines of context around the hunks, one by default."
  (interactive "p" qwen-companion-changes-mode)
  (qwen-companion-changes-more-context (- (or count 1))))

(defun qwen-companion-changes--revert (&rest _)
  "Reload everything, and hide each change seen so far."
  (qwen-companion-changes--note-seen)
  (qwen-companion-changes--reload t)
  (qwen-companion-changes--request-nets)
  (qwen-companion-changes--update))

;;; Undoing

(defun qwen-companion-changes-undo ()
  "Undo the hunk at point, the region's lines, the file or the turn.
What you have changed since stays.  With a turn, say first what is going
to happen.  \\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-bring-back] brings it back."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--act t))

(defun qwen-companion-changes-bring-back ()
  "Bring back the hunk at point, the region's lines, the file or the turn."
  (interactive nil qwen-companion-changes-mode)
  (qwen-companion-changes--act nil))

(defun qwen-companion-changes--act (undo)
  "Undo each change at point or in the region; restore it if UNDO is nil."
  (when (eq 'commit qwen-companion-changes--scope)
    (user-error "The journal has no turn for this; v t shows the turns"))
  (when (eql (point) (cl-shiftf qwen-companion-changes--unmarked nil))
    (user-error "The marked lines have just changed; look at what is shown now"))
  (cond
   ((use-region-p)
    (let ((start (region-beginning)) (end (region-end)))
      (goto-char start)
      (deactivate-mark)
      (qwen-companion-changes--act-on-lines start end undo)))
   ((qwen-companion-hunks-view-hunk-at (point))
    (qwen-companion-changes--act-on-changes
     (qwen-companion-changes--current-view (qwen-companion-changes--view-at-point))
     (qwen-companion-hunks-hunk-changes (qwen-companion-hunks-view-hunk-at (point)))
     undo))
   (t
    (let ((view (and (eq 'body (car (qwen-companion-items-key-at (point))))
                     (qwen-companion-changes--view-at-point))))
      (when (and view
                 (eq 'ready (qwen-companion-changes-file-state view))
                 (qwen-companion-changes-file-changes view))
        (user-error "There is no hunk here; the heading stands for the whole file")))
    (qwen-companion-changes--act-on-files
     (qwen-companion-changes--group-at-point)
     (qwen-companion-changes--path-at-point)
     undo))))

(defun qwen-companion-changes--act-on-changes (view list undo)
  "Undo each of LIST, of VIEW, or bring it back if UNDO is nil."
  (let* ((path (qwen-companion-changes-file-path view))
         (name (file-name-nondirectory (qwen-companion-untrusted-path path)))
         (changes (cl-remove-if
                   (lambda (change)
                     (eq undo (and (qwen-companion-hunks-change-text change) t)))
                   list))
         (deletes (and undo
                       (null (qwen-companion-changes-file-before view))
                       (null (cl-set-difference
                              (qwen-companion-changes-file-changes view) changes)))))
    (unless changes
      (user-error (if undo "This is undone already; u brings it back"
                    "This is not undone; k undoes it")))
    (let ((difference (qwen-companion-changes-file-difference view)))
      (qwen-companion-undo-confirm
       (list path) (if undo "undo" "bring back")
       (and deletes (format "Delete %s, which the agent made" name)))
      ;; That took a while, in which there may have been news.
      (qwen-companion-changes--await-ready view)
      (unless (and (eq difference (qwen-companion-changes-file-difference view))
                   (cl-every (lambda (change)
                               (eq undo (null (qwen-companion-hunks-change-text change))))
                             changes))
        (qwen-companion-changes--update)
        (user-error "%s has just changed; look at what is shown now" name)))
    (let ((result (qwen-companion-changes-file-swap
                   view changes
                   (qwen-companion-changes--turn-of
                    (qwen-companion-changes--group-at-point) (list path))
                   (format "%s %d change%s of %s"
                           (if undo "Undo" "Bring back") (length changes)
                           (if (cdr changes) "s" "") name))))
      (qwen-companion-changes--update)
      (qwen-companion-changes--report (list (cons path result)) undo 1))))

(defun qwen-companion-changes--act-on-files (group path undo)
  "Undo each change of PATH in GROUP, or restore it if UNDO is nil.
PATH nil means all files of GROUP."
  (let* ((files (if path
                    (list (qwen-companion-changes--shown-file group path))
                  (qwen-companion-changes--all-files group)))
         (paths (mapcar #'qwen-companion-changed-file-path files))
         (kinds (mapcar #'qwen-companion-changed-file-kind files)))
    (unless files
      (user-error "No file was changed here"))
    (qwen-companion-undo-confirm
     paths (if undo "undo" "bring back")
     (and (or (null path) (memq (if undo 'added 'deleted) kinds))
          (qwen-companion-changes--plan group files undo)))
    (let ((results (qwen-companion-undo-files
                    (qwen-companion-changes--request group) files
                    (qwen-companion-changes--turn-of group paths)
                    (format "%s %s" (if undo "Undo" "Bring back")
                            (if path
                                (file-name-nondirectory
                                 (qwen-companion-untrusted-path path))
                              (qwen-companion-changes--title group)))
                    (not undo))))
      (qwen-companion-changes--reload paths)
      (qwen-companion-changes--update)
      (qwen-companion-changes--report results undo (length files)))))

(defun qwen-companion-changes--all-files (group)
  "Return all files of GROUP, those that were seen too."
  (let ((turn (qwen-companion-journal-turn (qwen-companion-changes--group-turn group))))
    (if (and turn (eq 'turn (qwen-companion-changes--group-scope group)))
        (qwen-companion-turn-files turn)
      (let ((files (qwen-companion-changes--group-files group)))
        (and (listp files) files)))))

(defun qwen-companion-changes--turn-of (group paths)
  "Return the id of the turn that PATHS of GROUP belong to, or nil."
  (if (eq 'turn (qwen-companion-changes--group-scope group))
      (qwen-companion-changes--group-turn group)
    (cl-loop for turn in (qwen-companion-journal-turns)
             when (and (eq 'agent (qwen-companion-turn-who turn))
                       (cl-some (lambda (path)
                                  (qwen-companion-changes--file-of turn path))
                                paths))
             return (qwen-companion-turn-id turn))))

(defun qwen-companion-changes--undoings (id)
  "Return each turn by which a part of the turn ID is undone, newest first.
Leave out those that are undone themselves."
  (cl-loop for turn in (qwen-companion-journal-turns)
           when (and (equal id (qwen-companion-turn-undone-of turn))
                     (not (eq t (qwen-companion-changes--undone turn))))
           collect turn))

(defun qwen-companion-changes--undone (turn)
  "Return t when TURN is undone, `partly' when a part of it is, else nil."
  (when-let* ((undoings (qwen-companion-changes--undoings (qwen-companion-turn-id turn)))
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
                      (qwen-companion-changes--file-undone-p
                       file (gethash (qwen-companion-changed-file-path file) back)))
                    files)
          t
        'partly))))

(defun qwen-companion-changes--file-undone-p (file back)
  "Return non-nil when BACK has as many lines back as FILE took.
BACK is (ADDED . DELETED), or nil if no undoing touches FILE.  Of a renamed
file, only see whether there is one."
  (and back
       (or (eq 'renamed (qwen-companion-changed-file-kind file))
           (and (= (qwen-companion-changed-file-added file) (cdr back))
                (= (qwen-companion-changed-file-deleted file) (car back))))))

(defun qwen-companion-changes--title (group)
  "Return the prompt of the turn of GROUP, or the name of the scope."
  (let* ((id (qwen-companion-changes--group-id group))
         (turn (and (stringp id) (qwen-companion-journal-turn id)))
         (prompt (qwen-companion-untrusted-line (or (qwen-companion-turn-prompt turn) ""))))
    (cond ((not turn) (qwen-companion-changes--scope-words))
          ((string-empty-p prompt)
           (format "the turn of %s"
                   (qwen-companion-changes--time (qwen-companion-turn-start turn))))
          (t (format "\"%s\"" (truncate-string-to-width prompt 40 nil nil t))))))

(defun qwen-companion-changes--plan (group files undo)
  "Return a description of undoing FILES of GROUP, or of restoring them."
  (let ((parts nil))
    (pcase-dolist (`(,verb . ,kinds)
                   (if undo
                       '(("change back" modified mode) ("delete" added)
                         ("make again" deleted) ("rename back" renamed))
                     '(("change again" modified mode) ("make again" added)
                       ("delete" deleted) ("rename again" renamed))))
      (when-let* ((these (cl-remove-if-not
                          (lambda (file)
                            (memq (qwen-companion-changed-file-kind file) kinds))
                          files)))
        (push (format "%s %s" verb
                      (if (cdr these)
                          (format "%d files" (length these))
                        (file-name-nondirectory
                         (qwen-companion-untrusted-path
                          (qwen-companion-changed-file-path (car these))))))
              parts)))
    (format "%s %s: %s" (if undo "Undo" "Bring back")
            (qwen-companion-changes--title group)
            (string-join (nreverse parts) ", "))))

(defun qwen-companion-changes--request (group)
  "Return the part of the journal of GROUP, as in a request."
  (list :root (qwen-companion-changes--group-root group)
        :scope (qwen-companion-changes--group-scope group)
        :turn (qwen-companion-changes--group-turn group)
        :session (qwen-companion-changes--group-session group)))

(defun qwen-companion-changes--shown-file (group path)
  "Return the file PATH of GROUP."
  (cl-find path (qwen-companion-changes--all-files group)
           :key #'qwen-companion-changed-file-path :test #'equal))

(defun qwen-companion-changes--step (group path)
  "Return the step to undo PATH of GROUP."
  (qwen-companion-undo-step-from-texts
   (qwen-companion-changes--group-root group)
   (car (qwen-companion-journal-take-texts
         (qwen-companion-journal-await
          'journal-texts
          (append (qwen-companion-changes--request group)
                  (list :files (list (qwen-companion-undo-wanted-file
                                      (qwen-companion-changes--shown-file
                                       group path))))))))
   nil))

(defun qwen-companion-changes--report (results undo count)
  "Display a message about RESULTS of `qwen-companion-undo-run', of COUNT files.
UNDO is non-nil if they were to be undone.  Show a buffer with conflicts."
  (let* ((done (cl-count 'written results :key #'cdr))
         (unsaved (rassq 'unsaved results))
         (conflicts (cl-remove 'conflict results :key #'cdr :test-not #'eq))
         (kept (cl-remove-if-not (lambda (result) (stringp (cdr result))) results))
         (left (- count (length results)))
         (parts
          (delq nil
                (list
                 (when (> done 0)
                   (format "%s%s" (if undo "Undone" "Brought back")
                           (if (> count 1) (format " in %d files" done) "")))
                 (when unsaved
                   (format "%s in %s, which is not saved"
                           (if undo "undone" "brought back")
                           (file-name-nondirectory
                            (qwen-companion-untrusted-path (car unsaved)))))
                 (when conflicts
                   (format "%d conflict%s with your edits, nothing written there before you resolve %s: %s"
                           (length conflicts) (if (cdr conflicts) "s" "")
                           (if (cdr conflicts) "them" "it")
                           (qwen-companion-changes--names conflicts)))
                 (when kept
                   (qwen-companion-changes--left-alone kept))
                 (when (> left 0)
                   (format "stopped, %d file%s left as %s: the same key goes on"
                           left (if (= left 1) "" "s") (if (= left 1) "it is" "they are"))))))
         (text (string-join parts "; ")))
    (when (and (= left 0)
               (cl-every (lambda (result) (eq 'same (cdr result))) results))
      (user-error (if undo "This is undone already; u brings it back"
                    "This is not undone; k undoes it")))
    (when-let* ((buffer (and conflicts (find-buffer-visiting (caar conflicts)))))
      (display-buffer buffer)
      (qwen-companion-conflicts-show buffer))
    (if (and kept (not (or unsaved conflicts (> done 0))))
        (user-error "%s" (concat (upcase (substring text 0 1)) (substring text 1)))
      (message "%s" (concat (upcase (substring text 0 1)) (substring text 1))))))

(defun qwen-companion-changes--left-alone (kept)
  "Return in words which files were left alone; KEPT has the reason for each.
Of many, all are in the log of messages."
  (let ((lines (mapcar (lambda (result)
                         (format "%s (%s)"
                                 (file-name-nondirectory
                                  (qwen-companion-untrusted-path (car result)))
                                 (qwen-companion-untrusted-line (cdr result))))
                       kept))
        (most 3))
    (concat "left alone: " (string-join (seq-take lines most) ", ")
            (when (length> lines most)
              (let ((inhibit-message t))
                (dolist (line lines)
                  (message "Left alone: %s" line)))
              (format " and %d more, see *Messages*" (- (length lines) most))))))

(defun qwen-companion-changes--names (results)
  "Return the names of the files in RESULTS, a few of them."
  (mapconcat (lambda (result)
               (file-name-nondirectory (qwen-companion-untrusted-path (car result))))
             (seq-take results 3) ", "))

(defun qwen-companion-changes--act-on-lines (start end undo)
  "Undo the changed lines from START to END, or bring them back if UNDO is nil.
They are of one file."
  (let* ((view (progn
                 (qwen-companion-changes--first-hunk start end)
                 (qwen-companion-changes--current-view
                  (qwen-companion-changes--view-at-point))))
         (changes (qwen-companion-changes--select-lines view start end)))
    (unless changes
      (user-error "No line in the region was changed"))
    (qwen-companion-changes--act-on-changes view changes undo)))

(defun qwen-companion-changes--first-hunk (start end)
  "Go to the first hunk between START and END, or signal a `user-error'."
  (goto-char start)
  (unless (or (qwen-companion-hunks-view-hunk-at (point))
              (and (qwen-companion-hunks-view-goto-hunk (point) nil)
                   (< (point) end)))
    (user-error "There is no hunk in the region")))

(defun qwen-companion-changes--select-lines (view start end)
  "Return each change of VIEW on the lines from START to END.
A change that is there in part is split, so that the rest stays."
  (let ((difference (qwen-companion-changes-file-difference view))
        (selected nil))
    (save-excursion
      (goto-char start)
      (forward-line 0)
      (while (< (point) end)
        (when (eq difference (qwen-companion-hunks-view-difference-at (point)))
          (pcase (qwen-companion-hunks-view-source-at (point))
            (`(,(and kind (or 'removed 'added 'dropped)) ,change . ,index)
             (let ((place (if (eq kind 'removed)
                              (cons index 0)
                            (cons (qwen-companion-hunks-change-old-count change) index)))
                   (after (if (eq kind 'removed)
                              (cons (1+ index) 0)
                            (cons (qwen-companion-hunks-change-old-count change)
                                  (1+ index)))))
               (if-let* ((cell (assq change selected)))
                   (setcdr (cdr cell) after)
                 (push (cons change (cons place after)) selected))))))
        (forward-line 1)))
    (mapcar (pcase-lambda (`(,change . (,from . ,to)))
              (qwen-companion-changes--part difference change from to))
            (nreverse selected))))

(defun qwen-companion-changes--part (difference change from to)
  "Split from CHANGE of DIFFERENCE the lines FROM to TO, and return these.
Both are (REMOVED . ADDED), the numbers of lines before them."
  (let ((all (cons (qwen-companion-hunks-change-old-count change)
                   (qwen-companion-hunks-proposed-count change))))
    (unless (equal to all)
      (qwen-companion-hunks-split difference change (car to) (cdr to)))
    (if (equal from '(0 . 0))
        change
      (qwen-companion-hunks-split difference change (car from) (cdr from)))))

;;; Seen

(defun qwen-companion-changes-mark-seen (&optional unseen)
  "Mark the hunk, file or turn at point as seen and go on to the next.
It stays on the screen until the next time.  With a prefix argument
UNSEEN, mark it as not seen."
  (interactive "P" qwen-companion-changes-mode)
  (let* ((group (qwen-companion-changes--group-at-point))
         (path (qwen-companion-changes--path-at-point))
         (hunk (qwen-companion-hunks-view-hunk-at (point)))
         (view (and hunk (qwen-companion-changes--current-view
                          (qwen-companion-changes--view-at-point))))
         (keys (and hunk
                    (mapcar (apply-partially #'qwen-companion-changes-file-key view)
                            (qwen-companion-hunks-hunk-changes hunk)))))
    (dolist (turn (qwen-companion-changes--turns-of group path))
      (qwen-companion-backend-call
       'journal-seen (list :turn turn :path path :hunks keys :seen (not unseen))))
    (if unseen
        (message "Not seen")
      (message "Seen")
      (ignore-error user-error
        (qwen-companion-changes--skip-item group path hunk)))))

(defun qwen-companion-changes--skip-item (group path hunk)
  "Move point to the next item after PATH of GROUP, or after its HUNK."
  (cond
   (hunk (qwen-companion-changes-next))
   (t
    (let* ((key (if path
                    (qwen-companion-changes--file-key group path)
                  (list 'group (qwen-companion-changes--group-id group))))
           (next (cl-find-if (lambda (item)
                               (memq (car (car item)) (if path '(group file) '(group))))
                             (cdr (cl-member key (qwen-companion-items-bounds)
                                             :key #'car :test #'equal)))))
      (when next
        (goto-char (cadr next)))))))

(defun qwen-companion-changes--turns-of (group path)
  "Return the id of each turn of GROUP in which PATH was changed.
PATH nil stands for any file."
  (if (eq 'turn (qwen-companion-changes--group-scope group))
      (list (qwen-companion-changes--group-turn group))
    (cl-loop for turn in (qwen-companion-journal-turns)
             when (and (equal (qwen-companion-turn-root turn)
                              (qwen-companion-changes--group-root group))
                       (or (null path) (qwen-companion-changes--file-of turn path)))
             collect (qwen-companion-turn-id turn))))

;;; Comparing and copying

(defun qwen-companion-changes--file-at-point ()
  "Return the group and the file at point, (GROUP . PATH), or signal an error."
  (cons (qwen-companion-changes--group-at-point)
        (or (qwen-companion-changes--path-at-point)
            (user-error "There is no file here; TAB unfolds a turn"))))

(defun qwen-companion-changes-ediff ()
  "Compare the file at point with its text before the turn, in Ediff."
  (interactive nil qwen-companion-changes-mode)
  (pcase-let* ((`(,group . ,path) (qwen-companion-changes--file-at-point))
               (step (qwen-companion-changes--step group path))
               (windows (current-window-configuration)))
    (when (qwen-companion-undo-step-binary step)
      (user-error "%s is not a text" (qwen-companion-untrusted-path path)))
    (unless (file-exists-p path)
      (user-error "%s is not there any more; k undoes a deletion"
                  (qwen-companion-untrusted-path path)))
    (let* ((current (find-file-noselect path))
           (before (qwen-companion-changes--before-buffer
                    path (or (qwen-companion-undo-step-target step) "")
                    (buffer-local-value 'buffer-file-coding-system current))))
      (condition-case err
          (qwen-companion-compare-with-ediff
           (list before current)
           (lambda ()
             (ediff-buffers
              before current
              (list (lambda ()
                      (add-hook 'ediff-after-quit-hook-internal
                                (lambda ()
                                  (when (buffer-live-p before)
                                    (kill-buffer before))
                                  (set-window-configuration windows))
                                nil t))))))
        (error
         (kill-buffer before)
         (set-window-configuration windows)
         (user-error "Ediff cannot compare them: %s" (error-message-string err)))))))

(defun qwen-companion-changes--before-buffer (path bytes coding)
  "Return a read-only buffer with BYTES of PATH, decoded by CODING."
  (with-current-buffer (generate-new-buffer
                        (format "*before: %s*"
                                (file-name-nondirectory
                                 (qwen-companion-untrusted-path path))))
    (insert (decode-coding-string bytes (or coding 'utf-8)))
    (qwen-companion-untrusted-set-major-mode path)
    (set-buffer-modified-p nil)
    (setq buffer-read-only t)
    (current-buffer)))

(defun qwen-companion-changes-compare-with-proposal ()
  "Show how the file at point was written other than the CLI had proposed."
  (interactive nil qwen-companion-changes-mode)
  (pcase-let* ((`(,group . ,path) (qwen-companion-changes--file-at-point))
               (turn (or (qwen-companion-journal-turn
                          (qwen-companion-changes--group-turn group))
                         (user-error "Proposals belong to turns; v t shows these")))
               (proposed (or (qwen-companion-journal-proposed-text path turn)
                             (user-error "No proposal for %s is known in this turn"
                                         (qwen-companion-untrusted-path path))))
               (step (qwen-companion-changes--step group path))
               (written (qwen-companion-disk-unix-text
                         (decode-coding-string (or (qwen-companion-undo-step-base step) "")
                                               'utf-8))))
    (if (equal (qwen-companion-disk-unix-text proposed) written)
        (message "%s was written as proposed" (qwen-companion-untrusted-path path))
      (qwen-companion-compare-run
       (qwen-companion-disk-unix-text proposed) written
       "LC_ALL=C diff -a -u --label proposed --label written -- \"$1\" \"$2\""
       (lambda (output)
         (display-buffer (qwen-companion-compare-make-buffer path output)))))))

(defun qwen-companion-changes-copy-patch ()
  "Copy the hunk, file or turn at point as a patch.
What is undone is left out."
  (interactive nil qwen-companion-changes-mode)
  (let* ((group (qwen-companion-changes--group-at-point))
         (path (qwen-companion-changes--path-at-point))
         (hunk (qwen-companion-hunks-view-hunk-at (point)))
         (patch
          (if hunk
              (qwen-companion-changes--patch
               group (qwen-companion-changes--current-view
                      (qwen-companion-changes--view-at-point))
               (list hunk))
            (mapconcat
             (lambda (path)
               (qwen-companion-changes--patch
                group (qwen-companion-changes--await-view group path)))
             (if path
                 (list path)
               (mapcar #'qwen-companion-changed-file-path
                       (qwen-companion-changes--all-files group)))
             ""))))
    (when (string-empty-p patch)
      (user-error "There is nothing to copy here"))
    (kill-new patch)
    (message "Copied a patch of %d lines" (cl-count ?\n patch))))

(defun qwen-companion-changes--await-view (group path)
  "Return the view of PATH in GROUP when it is loaded."
  (let ((view (qwen-companion-changes--view group path)))
    (qwen-companion-changes--wait-for view 10)
    (unless (memq (qwen-companion-changes-file-state view) '(ready binary))
      (user-error "%s: %s" (qwen-companion-untrusted-path path)
                  (or (qwen-companion-changes-file-reason view)
                      "still comparing; try again in a moment")))
    view))

(defun qwen-companion-changes--patch (group view &optional hunks)
  "Return a patch of all that is not undone of VIEW in GROUP, or of HUNKS."
  (let* ((root (file-name-as-directory (qwen-companion-changes--group-root group)))
         (name (lambda (prefix path)
                 (let ((name (concat prefix (file-relative-name path root))))
                   (if (string-match-p "[[:cntrl:]\"\\]" name)
                       (let ((print-escape-newlines t)
                             (print-escape-control-characters t))
                         (prin1-to-string name))
                     name))))
         (path (qwen-companion-changes-file-path view))
         (from (or (qwen-companion-changes-file-from view) path)))
    (if (not (eq 'ready (qwen-companion-changes-file-state view)))
        (format "Binary files %s and %s differ\n"
                (funcall name "a/" from) (funcall name "b/" path))
      (let ((difference (qwen-companion-changes-file-difference view))
            (hunks (cl-remove-if
                    #'qwen-companion-hunks-dropped-p
                    (or hunks
                        (qwen-companion-hunks-group
                         (qwen-companion-changes-file-changes view)
                         (max 3 qwen-companion-changes--lines)
                         (qwen-companion-hunks-line-count
                          (qwen-companion-hunks-old
                           (qwen-companion-changes-file-difference view))))))))
        (if (null hunks)
            ""
          (with-temp-buffer
            (insert "--- "
                    (if (qwen-companion-changes-file-before view)
                        (funcall name "a/" from)
                      "/dev/null")
                    "\n+++ "
                    (if (qwen-companion-changes-file-after view)
                        (funcall name "b/" path)
                      "/dev/null")
                    "\n")
            (dolist (hunk hunks)
              (setf (qwen-companion-hunks-hunk-whole hunk) t)
              (qwen-companion-hunks-view-draw difference hunk))
            (buffer-substring-no-properties (point-min) (point-max))))))))

;;; Comments

(defun qwen-companion-changes-comment ()
  "Note a comment on the line at point; with an empty one, remove it.
\\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-send-comments] sends all comments to the CLI."
  (interactive nil qwen-companion-changes-mode)
  (pcase-let* ((`(,group . ,path) (qwen-companion-changes--file-at-point))
               (_ (unless (qwen-companion-hunks-view-hunk-at (point))
                    (user-error "Comments belong to lines; TAB unfolds the file")))
               (source (qwen-companion-changes--source-at-point))
               (id (qwen-companion-changes--group-id group))
               (known (cl-find-if
                       (lambda (comment)
                         (and (equal id (qwen-companion-changes--comment-group comment))
                              (equal path (qwen-companion-changes--comment-path comment))
                              (equal source (qwen-companion-changes--comment-source comment))))
                       qwen-companion-changes--comments))
               (text (string-trim
                      (read-string
                       (format "Comment on %s:%d: "
                               (file-name-nondirectory (qwen-companion-untrusted-path path))
                               (cddr source))
                       (and known (qwen-companion-changes--comment-text known))))))
    (setq qwen-companion-changes--comments
          (delq known qwen-companion-changes--comments))
    (unless (string-empty-p text)
      (setq qwen-companion-changes--comments
            (append qwen-companion-changes--comments
                    (list (qwen-companion-changes--make-comment
                           :group id :path path
                           :root (qwen-companion-changes--group-root group)
                           :source source
                           :line (buffer-substring-no-properties
                                  (line-beginning-position) (line-end-position))
                           :text text)))))
    (qwen-companion-changes--show-comments id path)
    (qwen-companion-changes--update-header)))

(defun qwen-companion-changes--source-at-point ()
  "Return the kind of the line at point and its numbers: (KIND OLD . NEW)."
  (cons (or (car (qwen-companion-hunks-view-source-at (point))) 'header)
        (qwen-companion-hunks-view-lines-at)))

(defun qwen-companion-changes--show-all-comments ()
  "Show the comments on all that is unfolded."
  (dolist (place (delete-dups
                  (mapcar (lambda (comment)
                            (cons (qwen-companion-changes--comment-group comment)
                                  (qwen-companion-changes--comment-path comment)))
                          qwen-companion-changes--comments)))
    (qwen-companion-changes--show-comments (car place) (cdr place))))

(defun qwen-companion-changes--show-comments (id path)
  "Show the comments on lines of PATH in the group ID.
Those whose line is not there are shown below the heading of the file."
  (pcase-let ((`(,_ ,start . ,end) (assoc (list 'body id path) (qwen-companion-items-bounds))))
    (when start
      (remove-overlays start end 'qwen-companion-changes-comment t)
      (dolist (comment qwen-companion-changes--comments)
        (when (and (equal id (qwen-companion-changes--comment-group comment))
                   (equal path (qwen-companion-changes--comment-path comment)))
          (save-excursion
            (goto-char start)
            (while (and (< (point) end)
                        (not (and (qwen-companion-hunks-view-hunk-at (point))
                                  (equal (qwen-companion-changes--comment-source comment)
                                         (qwen-companion-changes--source-at-point)))))
              (forward-line 1))
            (when (>= (point) end)
              (goto-char start))
            (qwen-companion-comments-show (qwen-companion-changes--comment-text comment)
                                          'qwen-companion-changes-comment)))))))

(defun qwen-companion-changes-send-comments ()
  "Send all comments to the CLI as one prompt, with places and quoted lines.
While the CLI works they wait, see `qwen-companion-ask-take-back'.  If it
runs in no terminal of this Emacs, copy the prompt instead, so that you
can paste it."
  (interactive nil qwen-companion-changes-mode)
  (unless qwen-companion-changes--comments
    (user-error "There are no comments; c notes one on the line at point"))
  (let* ((prompt (qwen-companion-changes--prompt qwen-companion-changes--comments))
         (count (length qwen-companion-changes--comments))
         (session (qwen-companion-changes--comments-session))
         (terminal (and session (qwen-companion-terminal-session-buffer session))))
    (if (not terminal)
        (progn
          (kill-new prompt)
          (message "The CLI is in no terminal of this Emacs: %d comment%s copied, paste %s there"
                   count (if (= count 1) "" "s") (if (= count 1) "it" "them")))
      (let ((done (qwen-companion-prompts-send
                   session (qwen-companion-changes--comment-root
                            (car qwen-companion-changes--comments))
                   prompt)))
        (message "%d comment%s: %s" count (if (= count 1) "" "s") done)))
    (setq qwen-companion-changes--comments nil)
    (remove-overlays nil nil 'qwen-companion-changes-comment t)
    (qwen-companion-changes--update-header)))

(defun qwen-companion-changes--prompt (comments)
  "Return COMMENTS as one prompt."
  (qwen-companion-comments-prompt
   "Comments on your changes:"
   (mapcar (lambda (comment)
             (list (file-relative-name (qwen-companion-changes--comment-path comment)
                                       (qwen-companion-changes--comment-root comment))
                   (cddr (qwen-companion-changes--comment-source comment))
                   (qwen-companion-changes--comment-line comment)
                   (qwen-companion-changes--comment-text comment)))
           comments)))

(defun qwen-companion-changes--comments-session ()
  "Return the connected CLI that gets the comments, or nil.
Ask which one if it cannot be told."
  (let* ((roots (mapcar #'qwen-companion-changes--comment-root
                        qwen-companion-changes--comments))
         (known
          (delq nil
                (mapcar (lambda (comment)
                          (when-let* ((id (qwen-companion-changes--comment-group comment))
                                      ((stringp id))
                                      (turn (qwen-companion-journal-turn id)))
                            (qwen-companion-backend-session (qwen-companion-turn-cli turn))))
                        qwen-companion-changes--comments)))
         (near
          (cl-remove-if-not
           (lambda (session)
             (when-let* ((directory (qwen-companion-session-directory session)))
               (cl-some (lambda (root)
                          (string-prefix-p (file-name-as-directory root)
                                           (file-name-as-directory directory)))
                        roots)))
           (qwen-companion-backend-sessions)))
         (candidates (or (delete-dups known) near)))
    (if (null (cdr candidates))
        (car candidates)
      (qwen-companion-layer-read-session "Send the comments to: " candidates))))

;;; The mode

(defvar qwen-companion-changes-mode-map
  (let ((map (make-sparse-keymap)))
    (pcase-dolist (`(,key . ,command)
                   '(("n" . qwen-companion-changes-next)
                     ("p" . qwen-companion-changes-previous)
                     ("TAB" . qwen-companion-changes-toggle-fold)
                     ("RET" . qwen-companion-changes-visit)
                     ("k" . qwen-companion-changes-undo)
                     ("u" . qwen-companion-changes-bring-back)
                     ("s" . qwen-companion-changes-mark-seen)
                     ("e" . qwen-companion-changes-ediff)
                     ("c" . qwen-companion-changes-comment)
                     ("C-c C-c" . qwen-companion-changes-send-comments)
                     ("w" . qwen-companion-changes-copy-patch)
                     ("." . qwen-companion-changes-describe)
                     ("=" . qwen-companion-changes-compare-with-proposal)
                     ("+" . qwen-companion-changes-more-context)
                     ("-" . qwen-companion-changes-less-context)
                     ("v t" . qwen-companion-changes-show-turns)
                     ("v f" . qwen-companion-changes-show-since)
                     ("v s" . qwen-companion-changes-show-session)
                     ("v l" . qwen-companion-changes-show-unseen)
                     ("v c" . qwen-companion-changes-show-since-commit)
                     ("v a" . qwen-companion-changes-toggle-seen)
                     ("v o" . qwen-companion-changes-toggle-client)))
      (define-key map (kbd key) command))
    (define-key map [mouse-2] #'qwen-companion-changes-visit-clicked)
    map)
  "Keymap of the buffer of changes.")

(easy-menu-define qwen-companion-changes-menu qwen-companion-changes-mode-map
  "Menu of the buffer of changes."
  '("Changes"
    ["Fold or Unfold" qwen-companion-changes-toggle-fold]
    ["Visit the Line" qwen-companion-changes-visit]
    ["Say the Hunk in Words" qwen-companion-changes-describe]
    "---"
    ["Undo Hunk, Region, File or Turn" qwen-companion-changes-undo]
    ["Bring It Back" qwen-companion-changes-bring-back]
    ["Mark as Seen" qwen-companion-changes-mark-seen]
    "---"
    ["Comment on the Line" qwen-companion-changes-comment]
    ["Send the Comments" qwen-companion-changes-send-comments
     :active qwen-companion-changes--comments]
    "---"
    ["Ediff with the Text Before" qwen-companion-changes-ediff]
    ["Compare with the Proposal" qwen-companion-changes-compare-with-proposal]
    ["Copy as Patch" qwen-companion-changes-copy-patch]
    "---"
    ("Show"
     ["Turns" qwen-companion-changes-show-turns
      :style radio :selected (eq 'turns qwen-companion-changes--scope)]
     ["From This Turn On" qwen-companion-changes-show-since
      :style radio :selected (eq 'since (car-safe qwen-companion-changes--scope))]
     ["This Session" qwen-companion-changes-show-session
      :style radio :selected (eq 'session (car-safe qwen-companion-changes--scope))]
     ["Since the Last Look" qwen-companion-changes-show-unseen
      :style radio :selected (eq 'look qwen-companion-changes--scope)]
     ["Since the Last Commit" qwen-companion-changes-show-since-commit
      :style radio :selected (eq 'commit qwen-companion-changes--scope)]
     "---"
     ["Seen Changes Too" qwen-companion-changes-toggle-seen
      :style toggle :selected qwen-companion-changes--all]
     ["One CLI Only" qwen-companion-changes-toggle-client
      :style toggle :selected qwen-companion-changes--client])))

(define-derived-mode qwen-companion-changes-mode special-mode "Changes"
  "Major mode for the list of agents' changes.
Info node `(qwen-companion)After the fact' is about it.

\\{qwen-companion-changes-mode-map}"
  :group 'qwen-companion
  :interactive nil
  (buffer-disable-undo)
  (qwen-companion-header-keep-keys)
  (qwen-companion-header-menu-at-click)
  (qwen-companion-completion-offer-targets #'qwen-companion-changes--targets)
  (setq-local bidi-paragraph-direction 'left-to-right
              truncate-lines t
              qwen-companion-hunks-view-note-function #'qwen-companion-changes--hunk-note
              imenu-create-index-function #'qwen-companion-changes--index
              revert-buffer-function #'qwen-companion-changes--revert)
  (setq qwen-companion-changes--views (make-hash-table :test #'equal)
        qwen-companion-changes--headings (make-hash-table :test #'equal)
        qwen-companion-changes--fresh t
        qwen-companion-changes--arrows (char-displayable-p ?▸))
  (qwen-companion-changes--note-seen)
  (jit-lock-register #'qwen-companion-hunks-view-fontify)
  (qwen-companion-timers-keep-updated #'qwen-companion-changes--update)
  (add-hook 'kill-buffer-hook #'qwen-companion-changes--clean-up nil t)
  (qwen-companion-changes--update-header))

(defun qwen-companion-changes--update-header ()
  "Show the scope, the number of comments and the keys in the header line."
  (setq header-line-format
        (qwen-companion-untrusted-mode-line
         (concat
          " " (qwen-companion-changes--scope-words)
          (when qwen-companion-changes--client
            (concat ", " (qwen-companion-untrusted-line qwen-companion-changes--client)))
          (when qwen-companion-changes--all ", seen too")
          (when qwen-companion-changes--comments
            (substitute-command-keys
             (format "  %d comment%s: \\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-send-comments] sends"
                     (length qwen-companion-changes--comments)
                     (if (cdr qwen-companion-changes--comments) "s" ""))))
          "   "
          (mapconcat
           (pcase-lambda (`(,command . ,label))
             (substitute-command-keys
              (format "\\<qwen-companion-changes-mode-map>\\[%s] %s" command label)))
           '((qwen-companion-changes-toggle-fold . "fold")
             (qwen-companion-changes-undo . "undo")
             (qwen-companion-changes-bring-back . "bring back")
             (qwen-companion-changes-mark-seen . "seen")
             (qwen-companion-changes-comment . "comment")
             (qwen-companion-changes-visit . "file")
             (describe-mode . "all keys"))
           "  "))))
  (force-mode-line-update))

(defun qwen-companion-changes--index ()
  "Return each turn and file for Imenu."
  (cl-loop for (key start . _) in (qwen-companion-items-bounds)
           when (memq (car key) '(group file))
           collect (save-excursion
                     (goto-char start)
                     (cons (string-trim (buffer-substring-no-properties
                                         (point) (line-end-position)))
                           (point-marker)))))

(defun qwen-companion-changes--clean-up ()
  "Stop updating: the buffer is being killed."
  (when (eq (current-buffer) (qwen-companion-changes--buffer))
    (remove-hook 'qwen-companion-journal-changed-functions
                 #'qwen-companion-changes--changed)
    (remove-hook 'qwen-companion-state-functions
                 #'qwen-companion-changes--state-changed)
    (qwen-companion-journal-watch 'changes nil))
  (qwen-companion-changes--forget-views))

(defun qwen-companion-changes-close ()
  "Kill the buffer of this mode if there is one."
  (when-let* ((buffer (qwen-companion-changes--buffer)))
    (quit-windows-on buffer)
    (kill-buffer buffer)))

;;; For other files

(defun qwen-companion-changes-call-at (turn path line function)
  "Call FUNCTION in a buffer of this mode with point on a hunk.
It is the one that TURN, an id, has made at LINE of the file PATH, as it
is now.  Signal a `user-error' if there is none.  The buffer is not
shown, and gone after that."
  (let ((buffer (generate-new-buffer " *qwen-companion change*")))
    (unwind-protect
        (with-current-buffer buffer
          (qwen-companion-changes-mode)
          (setq qwen-companion-changes--all t
                qwen-companion-changes--fresh nil
                qwen-companion-items-toggled
                (list (list 'group turn) (list 'file turn path)))
          (let* ((view (qwen-companion-changes--await-view
                        (or (qwen-companion-changes--group-of turn)
                            (user-error "This turn is not in the journal any more"))
                        path))
                 (change (and (eq 'ready (qwen-companion-changes-file-state view))
                              (qwen-companion-changes-file-change-at view line))))
            (push (list 'file turn path) qwen-companion-changes--whole)
            (qwen-companion-changes--update)
            (unless (and change (qwen-companion-hunks-view-goto-change change))
              (user-error "No agent has changed this line"))
            (funcall function)))
      (when (buffer-live-p buffer)
        (kill-buffer buffer)))))

(defun qwen-companion-changes-note-comment (root path line text comment)
  "Add COMMENT on LINE, with the text TEXT, of the file PATH below ROOT.
It is sent with the others."
  (with-current-buffer (qwen-companion-changes--open)
    (setq qwen-companion-changes--comments
          (append qwen-companion-changes--comments
                  (list (qwen-companion-changes--make-comment
                         :path path :root root :source (cons 'file (cons line line))
                         :line text :text comment))))
    (qwen-companion-changes--update-header)))

;;; Opening

(defun qwen-companion-changes--open ()
  "Return the buffer of this mode, made if need be."
  (or (qwen-companion-changes--buffer)
      (with-current-buffer (get-buffer-create qwen-companion-changes--buffer-name)
        (qwen-companion-changes-mode)
        (add-hook 'qwen-companion-journal-changed-functions
                  #'qwen-companion-changes--changed)
        (add-hook 'qwen-companion-state-functions
                  #'qwen-companion-changes--state-changed)
        (qwen-companion-journal-watch 'changes t)
        (current-buffer))))

;;;###autoload
(defun qwen-companion-changes ()
  "Show each change by CLIs, turn by turn, the newest turn first.
Whatever mode a CLI worked in and whoever approved, edits and shell
commands alike.  \\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-toggle-fold] unfolds a turn or a file, \\[qwen-companion-changes-undo] undoes the
hunk, file or turn at point, and \\[qwen-companion-changes-bring-back] brings it back.  What you have
marked as seen (\\[qwen-companion-changes-mark-seen]) is not shown the next time."
  (interactive)
  (when (eq (qwen-companion-state) 'off)
    (user-error "The companion is off and has no journal; turn it on with M-x qwen-companion-mode"))
  (let ((buffer (qwen-companion-changes--open)))
    (with-current-buffer buffer
      (qwen-companion-changes--note-seen))
    (pop-to-buffer buffer)
    (qwen-companion-changes--update)))

(defun qwen-companion-changes-of-session (turn)
  "Show each change in the conversation of TURN."
  (qwen-companion-changes)
  (qwen-companion-changes--show (list 'session (qwen-companion-turn-session turn))))

(provide 'qwen-companion-changes)
;;; qwen-companion-changes.el ends here
