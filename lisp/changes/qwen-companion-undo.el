;;; qwen-companion-undo.el --- Undo what an agent wrote, in files and buffers  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Undoing a change of an agent is a three-way merge: the base is the text
;; that the agent left, "mine" the current text, "theirs" the text before the
;; change.  So later edits of the user stay.  Restoring a change is the same
;; with base and "theirs" exchanged.
;;
;; Files are merged byte for byte: each byte counts as a character, and lines
;; end at a line feed, so that neither encoding nor line ends matter.  A buffer
;; that visits the file is updated, and no hooks of saving run.  A buffer with
;; unsaved text is changed instead of the file, as one undo step.  A conflict
;; is marked in a buffer, and nothing is written until it is resolved.
;;
;; Each file is either restored with the user's own edits, or unchanged.
;; Deletions come first, so that a directory can replace a file and a file a
;; directory.  A file is only deleted if its bytes are in the journal.  A file
;; that cannot be changed does not stop the others.
;;
;; All functions here are for commands: they block, and may ask.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-conflicts)
(require 'qwen-companion-disk)
(require 'qwen-companion-journal)
(require 'qwen-companion-merge)
(require 'qwen-companion-messages)
(require 'qwen-companion-programs)
(require 'qwen-companion-spool)
(require 'qwen-companion-untrusted)

(cl-defstruct (qwen-companion-undo-step (:copier nil))
  "A change of one file by which something is undone or brought back.
ROOT is the workspace root.  PATH is the file, and FROM its current name
if it must be renamed to PATH first.  BASE are its expected bytes and
TARGET the bytes that replace them, unibyte strings, or nil for no file.
BASE-MODE and TARGET-MODE are the permission bits of the file, `link' (the
bytes are its target), or nil.  BINARY is non-nil for a binary file, PLAIN
when the file has only extended attributes that Emacs preserves, APART
when its hard links belong to another file, which must not change.  LABELS
name the texts in a conflict."
  root path from base target base-mode target-mode binary plain apart
  (labels qwen-companion-conflicts-undo-labels))

(defconst qwen-companion-undo--limit 20
  "Seconds that a command waits for a merge; it can be quit.")

(defconst qwen-companion-undo--stretch 0.005
  "Seconds of work after which timers and process output are handled.")

(defconst qwen-companion-undo--garbage 6000000
  "Bytes after which garbage is collected while many files are undone.
Each file makes 20 KB of garbage: with Emacs's default of 0.8 MB,
collections would take most of the time.  With 20 MB, one collection takes
9 ms more, and the work between two is slower.")

(defvar qwen-companion-undo--turn-start nil
  "Start of the turn being undone, in milliseconds since the epoch, or nil.")

;;; Asking

(defun qwen-companion-undo-confirm (paths verb plan)
  "Ask before changing the files PATHS, if needed.
VERB names the action, such as \"undo\".  PLAN is nil for no question, or
describes the action in one line.  If an agent is working on one of PATHS,
the question says so and lets the user wait for it.  Quit if the user
declines."
  (if-let* ((paths)
            (busy (qwen-companion-journal-reply-busy
                   (qwen-companion-journal-await
                    'journal-busy (list :paths paths :wait nil)))))
      (pcase (read-char-choice
              (format "%s%s.  [w] wait for it, [n] %s now, [q] quit: "
                      (if plan (concat plan ".  ") "")
                      (qwen-companion-undo--busy-text busy) verb)
              '(?w ?n ?q))
        (?w (qwen-companion-undo--wait-for-agent paths))
        (?q (keyboard-quit)))
    (when (and plan (not (y-or-n-p (concat plan "? "))))
      (keyboard-quit))))

(defun qwen-companion-undo--busy-text (busy)
  "Describe the files that agents are working on; BUSY is as in the reply."
  (pcase-let ((`(,path ,_turn ,tool) (car busy)))
    (format "The agent is working on %s%s (%s)"
            (file-name-nondirectory (qwen-companion-untrusted-path path))
            (if (cdr busy) (format " and %d more" (1- (length busy))) "")
            (qwen-companion-untrusted-line (or tool "")))))

(defun qwen-companion-undo--wait-for-agent (paths)
  "Wait until no agent is working on PATHS; the user can quit."
  (message "Waiting until the agent is done (C-g to stop)...")
  (while (qwen-companion-journal-reply-busy
          (qwen-companion-journal-await
           'journal-busy (list :paths paths :wait t) 70)))
  (message nil))

;;; Steps

(defun qwen-companion-undo-step-from-texts (root taken action)
  "Return the step of ACTION for TAKEN, the change of a file below ROOT.
TAKEN is an element from `qwen-companion-journal-read-texts'.  ACTION is as
in `qwen-companion-undo-apply-steps': all but `undo' make the change
again.  Signal a `user-error' when the texts are an error."
  (pcase-let* ((`(,texts ,before ,after) taken)
               (reason (qwen-companion-texts-error texts))
               (before-mode (qwen-companion-texts-before-mode texts))
               (after-mode (qwen-companion-texts-after-mode texts))
               (path (qwen-companion-texts-path texts))
               (old (qwen-companion-texts-from texts))
               (again (not (eq 'undo action))))
    (when reason
      (user-error "%s" (qwen-companion-journal-sentence reason)))
    (make-qwen-companion-undo-step
     :root root
     :path (if again path (or old path))
     :from (and old (if again old path))
     :base (if again before after)
     :target (if again after before)
     :base-mode (if again before-mode after-mode)
     :target-mode (if again after-mode before-mode)
     :binary (not (and (qwen-companion-undo-text-p before)
                       (qwen-companion-undo-text-p after)))
     :plain (qwen-companion-texts-plain texts)
     :apart (qwen-companion-texts-apart texts))))

(defun qwen-companion-undo-text-p (bytes)
  "Return non-nil when BYTES, a unibyte string or nil, can be a text."
  (or (null bytes)
      (not (when-let* ((zero (string-search "\0" bytes)))
             (< zero 8000)))
      (string-prefix-p "\xff\xfe" bytes)
      (string-prefix-p "\xfe\xff" bytes)))

(defun qwen-companion-undo-apply-steps (list turn label action)
  "Do ACTION with TURN by each element of LIST in order.
ACTION is `undo', `bring-back' to restore undone changes, or `merge' for a
turn in a worktree.  Each element is (PATH . STEP), or (PATH . FUNCTION)
with a function that returns the step.  Report the writes to the journal;
LABEL describes the action.  Quitting stops between two files.

Return an alist of the processed files with the outcome for each:
`written', `unsaved' (changed in a buffer with unsaved text), `conflict'
\(marked in a buffer that visits the file), `same' (nothing to do), or a
string, the reason why the file was left alone."
  (let* ((qwen-companion-journal-inhibit t)
         ;; Quitting takes effect after the current file.
         (inhibit-quit t)
         (qwen-companion-disk-truename-cache (list nil))
         (steps list)
         (progress (qwen-companion-undo--progress (length steps) action))
         (written nil)
         (results nil))
    (unwind-protect
        (let ((gc-cons-threshold (max gc-cons-threshold qwen-companion-undo--garbage)))
          (ignore-error quit
            (while (and steps (not quit-flag))
              (pcase-let* ((`(,path . ,step) (pop steps))
                           (`(,result . ,paths) (qwen-companion-undo--try-step step)))
                (setq written (nconc paths written))
                ;; The buffer with the conflict has the file's current name.
                (push (cons (if (eq result 'conflict) (or (car paths) path) path) result)
                      results)
                (funcall progress (length results))))))
      (when written
        (qwen-companion-journal-wrote (nreverse written) turn label action)))
    (qwen-companion-undo--yield)
    (setq quit-flag nil)
    (nreverse results)))

(defun qwen-companion-undo--try-step (step)
  "Apply STEP, or the value of the function STEP.
Return (RESULT . PATHS): the outcome, as in `qwen-companion-undo-apply-steps',
and the written files."
  (condition-case err
      (let* ((step (if (functionp step) (funcall step) step))
             (path (qwen-companion-undo-step-path step))
             (from (qwen-companion-undo-step-from step))
             (result (qwen-companion-undo--apply-step step)))
        (cons result
              (and (memq result '(written unsaved conflict))
                   (append (and (or from (eq result 'written)) (list path))
                           (and from (list from))))))
    (error
     (list (error-message-string err)))))

(defun qwen-companion-undo--progress (count action)
  "Return a function to show how many of COUNT files are done, its argument.
It does nothing in the first second.  ACTION is as in
`qwen-companion-undo-apply-steps'."
  (let ((start (float-time))
        (reporter nil))
    (lambda (done)
      (qwen-companion-undo--yield)
      (when (and (not reporter) (> (- (float-time) start) 1))
        (setq reporter (make-progress-reporter
                        (format "%s %d files (C-g stops)..."
                                (pcase-exhaustive action
                                  ('undo "Undoing")
                                  ('bring-back "Bringing back")
                                  ('merge "Merging"))
                                count)
                        0 count done 1 0.2)))
      (when reporter
        (progress-reporter-update reporter done)))))

(defvar qwen-companion-undo--last-yield 0
  "Time when timers and processes last ran, as by `float-time'.")

(defun qwen-companion-undo--yield ()
  "Run timers and handle process output, if they have waited long."
  (when (> (- (float-time) qwen-companion-undo--last-yield) qwen-companion-undo--stretch)
    (let ((qwen-companion-disk-truename-cache nil))
      (accept-process-output nil 0))
    (setq qwen-companion-undo--last-yield (float-time))))

;;; Many files

(defun qwen-companion-undo-files (part files turn label action &optional adapt)
  "Do ACTION with each change of FILES in PART of the journal.
PART is a list as in a request; each of FILES is in the form of
`qwen-companion-changed-file-path'.  TURN, LABEL, ACTION and the value are
as in `qwen-companion-undo-apply-steps'.  The function ADAPT, if any, gets each
step and returns the one to apply."
  (let* ((root (plist-get part :root))
         (files (qwen-companion-undo--in-order files action))
         (paths (mapcar #'qwen-companion-changed-file-path files))
         (texts (make-qwen-companion-journal-texts
                 :part part
                 :files (mapcar #'qwen-companion-undo-wanted-file files)))
         (next (lambda ()
                 (funcall
                  (or adapt #'identity)
                  (qwen-companion-undo-step-from-texts
                   root
                   ;; The file is unchanged so far.
                   (let ((inhibit-quit nil))
                     (qwen-companion-journal-next-texts texts))
                   action))))
         (start (qwen-companion-turn-start (qwen-companion-journal-turn turn)))
         (qwen-companion-undo--turn-start start)
         (results nil))
    (unwind-protect
        (setq results (qwen-companion-undo-apply-steps
                       (mapcar (lambda (path) (cons path next)) paths)
                       turn label action))
      (qwen-companion-journal-end-texts texts))
    (unless (file-remote-p root)
      (qwen-companion-undo--delete-made-directories
       root start (cl-loop for (path . result) in results
                           when (eq result 'written) collect path)))
    (qwen-companion-undo--yield)
    results))

(defun qwen-companion-undo-wanted-file (file)
  "Return the element for FILE in a request of texts."
  (list :path (qwen-companion-changed-file-path file)
        :previous (qwen-companion-changed-file-from file)))

(defun qwen-companion-undo--in-order (files action)
  "Return FILES in the order that ACTION needs.
Deletions come first, then renames, then new files, so that each name is
free when it is needed."
  (cl-flet ((of (kind) (cl-remove kind files :test-not #'eq
                                  :key #'qwen-companion-changed-file-kind)))
    (append (of (if (eq 'undo action) 'added 'deleted))
            (of 'renamed)
            (of 'modified)
            (of 'mode)
            (of (if (eq 'undo action) 'deleted 'added)))))

;;; Directories

(defun qwen-companion-undo--delete-made-directories (root start files)
  "Delete the empty directories of FILES that the agent made.
These are directories born after START, the turn's start in milliseconds,
or nil.  Keep ROOT and its parents.  Quitting stops this."
  (let ((root (file-name-as-directory (file-truename root)))
        (inhibit-quit t)
        (directories (and start (delete-dups (mapcar #'file-name-directory files)))))
    (while (and directories (not quit-flag))
      (setq directories
            (qwen-companion-undo--born-after
             (cl-remove-if-not
              (lambda (directory)
                (qwen-companion-undo--yield)
                (let* ((file-name-handler-alist nil)
                       (true (ignore-errors (file-truename directory))))
                  (and true
                       (string-prefix-p root true)
                       (not (equal root true))
                       (qwen-companion-undo--empty-directory-p directory))))
              directories)
             start))
      (dolist (directory directories)
        (qwen-companion-undo--yield)
        (let ((file-name-handler-alist nil))
          (ignore-errors (delete-directory directory))))
      (setq directories
            (delete-dups (mapcar (lambda (directory)
                                   (file-name-directory (directory-file-name directory)))
                                 directories))))
    (setq quit-flag nil)))

(defun qwen-companion-undo--empty-directory-p (directory)
  "Return non-nil when DIRECTORY is an empty directory, and not a link to one."
  (and (qwen-companion-undo--directory-p (directory-file-name directory))
       (null (ignore-errors
               (directory-files directory nil directory-files-no-dot-files-regexp t 1)))
       (file-accessible-directory-p directory)))

(defun qwen-companion-undo--born-after (directories start)
  "Return those of DIRECTORIES known to be made after START, milliseconds."
  (cl-loop
   ;; The arguments of a program have a limit.
   for some in (seq-partition directories 500)
   nconc (with-temp-buffer
           (when (eql 0 (let ((process-environment (cons "LC_ALL=C" process-environment)))
                          (ignore-errors (apply #'qwen-companion-programs-call "stat" "-c" "%.3W"
                                                (mapcar #'expand-file-name some)))))
             (cl-loop for directory in some
                      for born in (split-string (buffer-string) "\n")
                      ;; 0 or a hyphen stands for an unknown time.
                      ;; The clock of file stamps may lag by 10 ms.
                      when (> (* 1000.0 (string-to-number born)) (- start 10))
                      collect directory)))))

(defun qwen-companion-undo--make-room (path)
  "Delete the empty directories at PATH, and make the parent directory of PATH.
If they contain a file, delete nothing and signal a `user-error'."
  (when (qwen-companion-undo--directory-p path)
    (let ((found (directory-files-recursively path "" t)))
      (if-let* ((file (cl-find-if-not #'qwen-companion-undo--directory-p found)))
          (user-error "There is a directory of that name now, with %s in it"
                      (qwen-companion-untrusted-path
                       (file-relative-name file path)))
        ;; What is in a directory comes before it.
        (mapc #'delete-directory (append found (list path))))))
  (let ((above (directory-file-name (file-name-directory path))))
    (unless (file-directory-p above)
      (while (not (qwen-companion-undo--exists-p above))
        (setq above (directory-file-name (file-name-directory above))))
      (unless (file-directory-p above)
        (user-error "%s is a file now, not a directory"
                    (qwen-companion-untrusted-path above)))
      (make-directory (file-name-directory path) t))))

(defun qwen-companion-undo--directory-p (path)
  "Return non-nil when PATH is a directory, and not a link to one."
  ;; Unlike `file-attributes', these make no garbage.
  (and (file-directory-p path) (not (file-symlink-p path))))

(defun qwen-companion-undo--exists-p (path)
  "Return non-nil when PATH exists, even as a dangling link."
  (and (or (file-exists-p path) (file-symlink-p path)) t))

;;; One file

(defun qwen-companion-undo--apply-step (step)
  "Apply STEP and return its result, see `qwen-companion-undo-apply-steps'.
If the file must be left alone, change nothing and signal an error."
  (if (file-remote-p (qwen-companion-undo-step-path step))
      (qwen-companion-undo--apply-remote-step step)
    (qwen-companion-undo--apply-local-step step)))

(defun qwen-companion-undo--apply-local-step (step)
  "Apply STEP, for a local file; see `qwen-companion-undo--apply-step'."
  (let* ((path (qwen-companion-undo-step-path step))
         (from (qwen-companion-undo-step-from step))
         (file-name-handler-alist nil)
         (from-there (and from (qwen-companion-undo--exists-p from)))
         (renamed nil))
    (qwen-companion-undo--check-location step path)
    (when from
      (qwen-companion-undo--check-location step from))
    (unless (run-hook-with-args-until-failure
             'qwen-companion-disk-catch-up-functions (if from-there from path))
      (user-error "It has just changed on disk; try again in a moment"))
    ;; The file may already have its old name.
    (when (and from (or from-there (not (qwen-companion-undo--exists-p path))))
      (qwen-companion-undo--rename from path)
      (setq renamed t))
    (condition-case err
        (qwen-companion-undo--write-contents step renamed)
      (error
       (when renamed
         (qwen-companion-undo--rename path from))
       (signal (car err) (cdr err))))))

(defun qwen-companion-undo--write-contents (step renamed)
  "Write the wanted contents to the file of STEP.
RENAMED is non-nil if it has just been renamed.  Return the outcome, as
in `qwen-companion-undo-apply-steps'."
  (let ((result (cond
                 ((memq 'link (list (qwen-companion-undo-step-base-mode step)
                                    (qwen-companion-undo-step-target-mode step)))
                  (qwen-companion-undo--apply-to-link step))
                 ((null (qwen-companion-undo-step-target step))
                  (qwen-companion-undo--delete step))
                 (t
                  (qwen-companion-undo--apply-to-text step))))
        (changed (qwen-companion-undo--set-mode step)))
    (if (and (eq result 'same) (or changed renamed)) 'written result)))

(defun qwen-companion-undo--check-location (step path)
  "Signal a `user-error' unless STEP may change the file PATH.
Its real directory must be in the real root, and the file must not be a
new link."
  (let* ((file-name-handler-alist nil)
         (root (qwen-companion-disk-true-directory
                (file-name-as-directory (qwen-companion-undo-step-root step))))
         (directory (qwen-companion-disk-true-directory (file-name-directory path))))
    (unless (string-prefix-p root directory)
      (user-error "Its directory is outside the project (symbolic link)"))
    (when (member ".git" (cons (file-name-nondirectory path)
                               (split-string (substring directory (length root)) "/")))
      (user-error "It belongs to git"))
    (pcase (file-attribute-type (qwen-companion-disk-attributes path))
      ('t
       (unless (and (equal path (qwen-companion-undo-step-path step))
                    (qwen-companion-undo-step-target step)
                    (or (qwen-companion-undo-step-from step)
                        (null (qwen-companion-undo-step-base step))))
         (user-error "There is a directory of that name now")))
      ((pred stringp)
       (unless (memq 'link (list (qwen-companion-undo-step-base-mode step)
                                 (qwen-companion-undo-step-target-mode step)))
         (user-error "It is a symbolic link now")))
      (_
       (unless (or (qwen-companion-disk-regular-p path) (not (qwen-companion-undo--exists-p path)))
         (user-error "It is no longer a regular file"))))))

(defun qwen-companion-undo--rename (from path)
  "Rename the file FROM to PATH, for the buffer that visits it too."
  (let ((buffer (qwen-companion-disk-buffer from))
        (other (qwen-companion-disk-buffer path)))
    (cond
     ((not (qwen-companion-undo--exists-p from))
      (user-error "%s no longer exists" (qwen-companion-untrusted-path from)))
     ((and (qwen-companion-undo--exists-p path)
           (not (qwen-companion-undo--directory-p path)))
      (user-error "%s is in the way" (qwen-companion-untrusted-path path)))
     ((and other (buffer-modified-p other))
      (user-error "%s has unsaved text" (buffer-name other)))
     ;; Otherwise the buffer would lose its file.
     ((and other buffer (buffer-modified-p buffer))
      (user-error "%s has unsaved text" (buffer-name buffer))))
    (if (or (string-prefix-p (file-name-as-directory path) from)
            (string-prefix-p (file-name-as-directory from) path))
        (qwen-companion-undo--rename-within from path)
      (qwen-companion-undo--make-room path)
      (rename-file from path))
    (when (and buffer (not other))
      (with-current-buffer buffer
        (set-visited-file-name path t t)))))

(defun qwen-companion-undo--rename-within (from path)
  "Rename the file FROM to PATH; one of both is a parent directory of the other."
  (let ((aside (make-temp-name
                (concat (directory-file-name
                         (if (string-prefix-p (file-name-as-directory path) from)
                             path
                           from))
                        ".qwen-companion-"))))
    (rename-file from aside)
    (condition-case err
        (progn
          (qwen-companion-undo--make-room path)
          (rename-file aside path))
      (error
       (qwen-companion-undo--make-room from)
       (rename-file aside from)
       (signal (car err) (cdr err))))))

(defun qwen-companion-undo--bytes (path)
  "Return the bytes of the file PATH, a unibyte string, or nil without one."
  (if (file-remote-p path)
      (car (qwen-companion-undo--remote-file path))
    (qwen-companion-disk-bytes path)))

;;; Files that no buffer visits

(defun qwen-companion-undo--apply-to-text (step)
  "Apply STEP to its file, or to the buffer that visits it."
  (let* ((path (qwen-companion-undo-step-path step))
         (target (qwen-companion-undo-step-target step))
         (buffer (if (qwen-companion-undo-step-apart step)
                     (get-file-buffer path)
                   (qwen-companion-disk-buffer path)))
         (bytes (qwen-companion-undo--bytes path)))
    (when (and bytes (not (equal bytes target)) (not (file-writable-p path)))
      ;; The change itself may have made it read-only.
      (qwen-companion-undo--set-mode step)
      (unless (file-writable-p path)
        (user-error "It is read-only on disk")))
    (cond
     ((and buffer bytes (buffer-modified-p buffer)
           (not (qwen-companion-undo-step-binary step)))
      (qwen-companion-undo--change-buffer step buffer))
     ((equal bytes target) 'same)
     ((and buffer (buffer-modified-p buffer))
      (user-error "%s has unsaved text" (buffer-name buffer)))
     ((equal bytes (qwen-companion-undo-step-base step))
      (qwen-companion-undo--replace path bytes target step)
      'written)
     ((null bytes)
      (user-error "It no longer exists"))
     ((qwen-companion-undo-step-binary step)
      (user-error "It is a binary file and has changed since"))
     (t
      (qwen-companion-undo--merge-bytes step bytes)))))

(defun qwen-companion-undo--merge-bytes (step bytes)
  "Merge the change of STEP into its file, which has BYTES and is unvisited.
Return the outcome, as in `qwen-companion-undo-apply-steps'."
  (let* ((path (qwen-companion-undo-step-path step))
         (coding (qwen-companion-undo-lossless-coding bytes))
         (decode (lambda (bytes) (decode-coding-string (or bytes "") coding t)))
         (theirs (funcall decode (qwen-companion-undo-step-target step)))
         (merged (qwen-companion-undo--merge
                  (funcall decode (qwen-companion-undo-step-base step))
                  (funcall decode bytes) theirs
                  (qwen-companion-undo-step-labels step))))
    (if (> (qwen-companion-merge-result-conflicts merged) 0)
        (qwen-companion-undo--change-buffer
         step (let ((enable-local-variables :safe))
                (find-file-noselect path t)))
      (qwen-companion-undo--replace
       path bytes
       (encode-coding-string (or (qwen-companion-merge-result-text merged) theirs) coding t)
       step)
      'written)))

(defun qwen-companion-undo--replace (path expected bytes step)
  "Replace EXPECTED, the bytes of the file PATH, by BYTES.
Each of them is nil for no file.  Update a buffer that visits the file.
STEP is as in `qwen-companion-undo--write'."
  (let* ((found (and (file-remote-p path) (qwen-companion-undo--remote-file path)))
         (buffer (if (file-remote-p path)
                     ;; For another name, TRAMP would ask the host.
                     (get-file-buffer path)
                   (qwen-companion-disk-buffer path))))
    (if (file-remote-p path)
        (qwen-companion-undo--write-remote
         path expected bytes (qwen-companion-undo--mode step (cdr found)))
      (unless (equal expected (qwen-companion-undo--bytes path))
        (user-error "It has just changed on disk; try again in a moment"))
      ;; The journal has all contents, so a crash of the machine loses
      ;; nothing.  Waiting for the disk would take 2 to 6 ms per file.
      (let ((write-region-inhibit-fsync t))
        (qwen-companion-undo--write path bytes step)))
    (when buffer
      (qwen-companion-undo--reread buffer path))))

(defun qwen-companion-undo-lossless-coding (bytes)
  "Return a coding system that decodes and encodes BYTES without loss.
It keeps line feeds."
  (let ((coding (cond ((string-prefix-p "\xff\xfe" bytes) 'utf-16le-with-signature-unix)
                      ((string-prefix-p "\xfe\xff" bytes) 'utf-16be-with-signature-unix))))
    (if (and coding
             (equal bytes (encode-coding-string
                           (decode-coding-string bytes coding) coding)))
        coding
      'iso-latin-1-unix)))

(defun qwen-companion-undo--write (path bytes step)
  "Write BYTES to the file PATH; keep its attributes and hard links.
A new file, and one that STEP separates from its hard links, gets the
permission bits of STEP.  Make missing directories, and remove empty ones
at PATH.  After a failure the old bytes are in PATH, or in the file that
the error names."
  (qwen-companion-undo--make-room path)
  (let ((file-name-handler-alist nil)
        (aside (make-temp-name (expand-file-name ".qwen-companion-"
                                                 (file-name-directory path)))))
    (qwen-companion-undo--put aside "" 'excl)
    (unwind-protect
        (cond
         ((or (qwen-companion-undo-step-apart step) (not (qwen-companion-disk-regular-p path)))
          (qwen-companion-undo--put aside bytes)
          (set-file-modes aside (or (qwen-companion-undo--mode step (file-modes path))
                                    (logand #o666 (default-file-modes))))
          (rename-file aside path (qwen-companion-undo-step-apart step)))
         ((or (and (qwen-companion-undo-step-plain step)
                   (qwen-companion-undo--same-owner-p path aside)
                   (progn
                     (ignore-errors
                       (set-file-extended-attributes
                        aside (file-extended-attributes path)))
                     t))
              (qwen-companion-undo--copy path aside))
          (let ((modes (file-modes path)))
            (qwen-companion-undo--put aside bytes)
            ;; Writing to a file clears its special mode bits.
            (set-file-modes aside modes)
            (rename-file aside path t)))
         (t
          (let ((modes (file-modes path)))
            (condition-case err
                (qwen-companion-undo--put path bytes)
              (file-error
               (condition-case nil
                   (copy-file aside path t)
                 (file-error
                  (user-error "It is truncated; its whole text is in %s" (cl-shiftf aside nil))))
               (signal (car err) (cdr err))))
            (unless (= modes (file-modes path))
              (set-file-modes path modes)))))
      (when (and aside (file-exists-p aside))
        (delete-file aside)))))

(defun qwen-companion-undo--put (path bytes &optional exclusive)
  "Write BYTES into the file PATH; with EXCLUSIVE, into a new, private file."
  (let ((coding-system-for-write 'no-conversion)
        (write-region-annotate-functions nil)
        (write-region-post-annotation-function nil)
        (create-lockfiles nil))
    (with-file-modes #o600
      (write-region bytes nil path nil 'silent nil exclusive))))

(defun qwen-companion-undo--copy (path aside)
  "Copy the file PATH, with its owner and attributes, over the file ASIDE.
Return non-nil when ASIDE can replace PATH: owner and attributes are
equal, and PATH has no other names.  Signal an error if copying fails, or
if no file with the new bytes could have the special mode bits of PATH."
  (with-temp-buffer
    ;; Emacs itself copies no extended attributes on GNU/Linux.
    (unless (eql 0 (qwen-companion-programs-call-loudly "cp" "-a" "--" path aside))
      (signal 'file-error (last (split-string (string-trim (buffer-string)) ": ")))))
  (unless (= (file-modes path) (file-modes aside))
    (user-error "Only its owner can keep its set-user-ID and set-group-ID bits"))
  (qwen-companion-undo--same-owner-p path aside))

(defun qwen-companion-undo--same-owner-p (path aside)
  "Return non-nil when the files PATH and ASIDE have the same owner and group.
Return nil if PATH has other names."
  (let ((attributes (file-attributes path 'integer))
        (others (file-attributes aside 'integer)))
    (and (= 1 (file-attribute-link-number attributes))
         (eql (file-attribute-user-id attributes) (file-attribute-user-id others))
         (eql (file-attribute-group-id attributes) (file-attribute-group-id others)))))

(defun qwen-companion-undo--reread (buffer path)
  "Update BUFFER, which has no unsaved text, from the file PATH."
  (unless (and (run-hook-with-args-until-failure
                'qwen-companion-disk-catch-up-functions path)
               (verify-visited-file-modtime buffer))
    (with-current-buffer buffer
      (revert-buffer t t t))))

(defun qwen-companion-undo--set-mode (step)
  "Set the permission bits of STEP's file that differ between its two modes.
Return non-nil if that changes them."
  (let ((path (qwen-companion-undo-step-path step)))
    (when (and (integerp (qwen-companion-undo-step-base-mode step))
               (integerp (qwen-companion-undo-step-target-mode step))
               (qwen-companion-disk-regular-p path))
      (let* ((now (file-modes path))
             (wanted (qwen-companion-undo--mode step now)))
        (unless (= wanted now)
          (set-file-modes path wanted)
          t)))))

(defun qwen-companion-undo--delete (step)
  "Delete the file of STEP if its contents are as expected.
Obey `delete-by-moving-to-trash'."
  (let* ((path (qwen-companion-undo-step-path step))
         (buffer (qwen-companion-disk-buffer path)))
    (cond
     ((not (qwen-companion-undo--exists-p path)) 'same)
     ((and buffer (buffer-modified-p buffer))
      (user-error "%s has unsaved text" (buffer-name buffer)))
     ((not (equal (qwen-companion-undo--bytes path)
                  (qwen-companion-undo-step-base step)))
      (user-error "It has other changes too, so it is not deleted"))
     (t
      (delete-file path t)
      'written))))

(defun qwen-companion-undo--apply-to-link (step)
  "Make, change or remove the symbolic link of STEP.
Signal a `user-error' if something else is there now."
  (let* ((path (qwen-companion-undo-step-path step))
         (target (qwen-companion-undo-step-target step))
         (mode (qwen-companion-undo-step-target-mode step))
         (present (file-symlink-p path))
         (bytes (if present
                    (encode-coding-string present (qwen-companion-undo--name-coding))
                  (qwen-companion-undo--bytes path))))
    (cond
     ((and (equal bytes target)
           (eq (and present t) (eq 'link mode)))
      'same)
     ((not (and (equal bytes (qwen-companion-undo-step-base step))
                (eq (and present t)
                    (eq 'link (qwen-companion-undo-step-base-mode step)))))
      (user-error "It has other changes too"))
     (t
      (when bytes
        (delete-file path))
      (pcase mode
        ('link (qwen-companion-undo--make-room path)
               (make-symbolic-link
                (decode-coding-string target (qwen-companion-undo--name-coding)) path))
        ('nil nil)
        (_ (qwen-companion-undo--write path target step)))
      'written))))

(defun qwen-companion-undo--name-coding ()
  "Return the coding system of file names."
  (or file-name-coding-system default-file-name-coding-system 'utf-8-unix))

;;; Buffers

(defun qwen-companion-undo--change-buffer (step buffer)
  "Merge the change of STEP into BUFFER, which visits its file.
If it has no unsaved text, write it.  Return the outcome, as in
`qwen-companion-undo-apply-steps'."
  (with-current-buffer (or (buffer-base-buffer buffer) buffer)
    (when (qwen-companion-conflicts-p)
      (user-error "%s has unresolved conflicts" (buffer-name)))
    (unless (verify-visited-file-modtime)
      ;; The buffer does not follow the file: saving would ask.
      (if (buffer-modified-p)
          (user-error "%s has unsaved text, and its file has changed too" (buffer-name))
        (revert-buffer t t t)))
    (pcase-let*
        ((modified (buffer-modified-p))
         (mine (qwen-companion-disk-text (current-buffer) "\n"))
         (`(,base . ,base-coding)
          (qwen-companion-undo--decode (qwen-companion-undo-step-base step)))
         (`(,theirs . ,coding)
          (qwen-companion-undo--decode (qwen-companion-undo-step-target step)))
         (merged (qwen-companion-undo--merge
                  (unless (equal base mine) base) (current-buffer) theirs
                  (qwen-companion-undo-step-labels step)))
         (recoded (and (not (eq coding base-coding))
                       ;; The user has chosen no other since.
                       (eq buffer-file-coding-system
                           (qwen-companion-disk-fitting-coding base-coding)))))
      (if (and (zerop (length (qwen-companion-merge-result-edits merged)))
               (not recoded))
          'same
        (qwen-companion-merge-apply merged theirs)
        (when recoded
          (qwen-companion-disk-adopt-coding
           ;; ASCII text does not show its encoding, except for a missing mark.
           (if (and (eq 'undecided (coding-system-type coding))
                    (coding-system-get base-coding :bom))
               (coding-system-change-eol-conversion
                'utf-8 (coding-system-eol-type coding))
             coding)))
        (cond
         ((> (qwen-companion-merge-result-conflicts merged) 0)
          (qwen-companion-conflicts-begin nil nil nil)
          'conflict)
         ((or modified (not (qwen-companion-undo--write-buffer step))) 'unsaved)
         (t 'written))))))

(defun qwen-companion-undo--write-buffer (step)
  "Write the current buffer to the file of STEP, without hooks of saving.
Return non-nil if its coding system can encode all its characters."
  (let ((text (qwen-companion-disk-text (current-buffer) "\n"))
        (path buffer-file-name))
    (unless (unencodable-char-position 0 (length text) buffer-file-coding-system nil text)
      (set-buffer-modified-p nil)
      (condition-case err
          (qwen-companion-undo--replace
           path (qwen-companion-undo--bytes path)
           (encode-coding-string text buffer-file-coding-system)
           step)
        (error
         (set-buffer-modified-p t)
         (signal (car err) (cdr err))))
      t)))

(defun qwen-companion-undo--decode (bytes)
  "Return (TEXT . CODING): BYTES as if the current buffer had just read them.
BYTES are a unibyte string, or nil for none."
  (let ((coding-system-for-read (qwen-companion-disk-named-coding buffer-file-name))
        (path buffer-file-name))
    (with-temp-buffer
      (let ((inhibit-null-byte-detection t)
            (last-coding-system-used nil))
        (insert (string-to-multibyte (or bytes "")))
        (decode-coding-inserted-region (point-min) (point-max) path)
        (cons (buffer-string) last-coding-system-used)))))

(defun qwen-companion-undo--merge (base mine theirs labels)
  "Return the merge of THEIRS, a string, into MINE, with LABELS.
It is as in `qwen-companion-merge-texts'.  BASE is a string, or nil for the
base of MINE.  Block until it is done; if it fails, signal a
`user-error'."
  (let ((waiting t)
        merged)
    (qwen-companion-merge-texts
     base mine theirs labels
     (lambda (result)
       (setq merged result waiting nil)))
    (with-local-quit
      (qwen-companion-backend-wait (lambda () (not waiting))
                                   qwen-companion-undo--limit))
    (or merged
        (user-error (if quit-flag
                        "Interrupted"
                      "Merging failed; see M-x qwen-companion-log")))))

;;; Remote files: the relay reads and writes those that no buffer visits

(defun qwen-companion-undo--apply-remote-step (step)
  "Apply STEP, for a remote file; see `qwen-companion-undo--apply-step'."
  (let* ((path (qwen-companion-undo-step-path step))
         (from (qwen-companion-undo-step-from step))
         (found (or (and from (qwen-companion-undo--remote-file from))
                    (progn (setq from nil) (qwen-companion-undo--remote-file path))))
         (bytes (car found))
         (mode (qwen-companion-undo--mode step (cdr found)))
         (base (qwen-companion-undo-step-base step))
         (target (qwen-companion-undo-step-target step))
         (is-text (not (or (qwen-companion-undo-step-binary step)
                           (memq 'link (list (cdr found) mode)))))
         ;; By its name alone: for another name, TRAMP would ask the host.
         (buffer (get-file-buffer (or from path))))
    (cond
     ((and buffer bytes target is-text (not from) (buffer-modified-p buffer))
      (qwen-companion-undo--change-buffer step buffer))
     ((and (equal bytes target) (not from) (equal mode (cdr found))) 'same)
     ((and buffer (buffer-modified-p buffer))
      (user-error "%s has unsaved text" (buffer-name buffer)))
     ((or (equal bytes base) (equal bytes target))
      (qwen-companion-undo--write-remote path (and (not from) bytes) target mode)
      (when from
        (qwen-companion-undo--write-remote from bytes nil nil))
      (when buffer
        (qwen-companion-undo--show-remote buffer path target))
      'written)
     ((null bytes) (user-error "It no longer exists"))
     ((null target) (user-error "It has other changes too, so it is not deleted"))
     ((not is-text) (user-error "It is a binary file and has changed since"))
     (from (user-error "It has been renamed and has other changes too"))
     (t (qwen-companion-undo--merge-bytes step bytes)))))

(defun qwen-companion-undo--mode (step mode)
  "Return the new mode of STEP's file, which has MODE, or nil for no file."
  (let ((base (qwen-companion-undo-step-base-mode step))
        (target (qwen-companion-undo-step-target-mode step)))
    (if (and (integerp mode) (integerp base) (integerp target))
        (let ((differing (logxor base target)))
          (logior (logand mode (lognot differing)) (logand target differing)))
      (or target mode))))

(defun qwen-companion-undo--show-remote (buffer path target)
  "Visit PATH with the bytes TARGET in BUFFER, which has no unsaved text."
  (with-current-buffer buffer
    (unless (equal path buffer-file-name)
      (set-visited-file-name path t t))
    (when target
      (revert-buffer t t t))))

(defun qwen-companion-undo--remote-file (path)
  "Return (BYTES . MODE) of the remote file PATH, or nil for no file."
  (pcase (car (qwen-companion-journal-read-texts
               (qwen-companion-journal-await 'journal-file (list :path path) 30)))
    (`(,texts ,_ ,bytes)
     (and bytes (cons bytes (or (qwen-companion-texts-after-mode texts) 'link))))))

(defun qwen-companion-undo--write-remote (path expected bytes mode)
  "Write BYTES with MODE to the remote file PATH, if its bytes are EXPECTED.
Each of them is nil for no file."
  (qwen-companion-journal-await
   'journal-put
   (append (list :path path
                 :expected (and expected
                                (sha1 (concat (format "blob %d\0" (length expected)) expected)))
                 :delete (null bytes)
                 :mode (if (integerp mode) mode #o644)
                 :link (eq mode 'link)
                 :since qwen-companion-undo--turn-start)
           (qwen-companion-spool-pack (base64-encode-string (or bytes "") t)))
   60))

(provide 'qwen-companion-undo)
;;; qwen-companion-undo.el ends here
