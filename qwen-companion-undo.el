;;; qwen-companion-undo.el --- Undo what an agent wrote, in files and buffers  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; To undo a change of an agent is a three-way merge: its base is the text
;; that the agent left, "mine" is the current text, "theirs" the text as it
;; was before.  So later edits of the user stay.  To bring a change
;; back is the same with base and "theirs" exchanged.
;;
;; Where a buffer visits the file, the buffer is changed, as one undo step;
;; it is saved if it was saved before.  Other files are merged byte for byte:
;; each byte counts as a character, and lines end at a line feed, so that
;; neither encoding nor line ends matter.  A conflict is marked in a buffer,
;; and nothing is written until it is resolved.
;;
;; All functions here are for commands: they wait, and may ask.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-conflicts)
(require 'qwen-companion-disk)
(require 'qwen-companion-journal)
(require 'qwen-companion-merge)
(require 'qwen-companion-untrusted)

(cl-defstruct (qwen-companion-undo-step (:copier nil))
  "A change of one file by which something is undone or brought back.
ROOT is the workspace root.  PATH is the file, and FROM its name now if
it is to be renamed to PATH first.  BASE are the bytes that are expected
in it, TARGET those that it is to have if they are, both unibyte strings;
nil means that there is no such file.  BASE-MODE and TARGET-MODE are what
the file is: `file', `executable', `link' (the bytes are its target), or
nil.  BINARY is non-nil when the bytes are not those of a text."
  root path from base target base-mode target-mode binary)

(defconst qwen-companion-undo--limit 20
  "Seconds that a command waits for a merge; it can be quit.")

;;; Asking

(defun qwen-companion-undo-confirm (paths verb plan)
  "Ask whether to go on with changing the files PATHS, if need be.
VERB names the action, such as \"undo\".  PLAN is nil, or says
in one line what is going to happen, which is asked about.  If an agent
is at work on one of PATHS, say so and let the user wait for it: that is
the same question.  Quit if the user says no."
  (if-let* ((busy (qwen-companion-journal-reply-busy
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
  "Return in words which files agents are at work on; BUSY is as in the reply."
  (pcase-let ((`(,path ,_turn ,tool) (car busy)))
    (format "The agent is at work on %s%s (%s)"
            (file-name-nondirectory (qwen-companion-untrusted-path path))
            (if (cdr busy) (format " and %d more" (1- (length busy))) "")
            (qwen-companion-untrusted-line (or tool "")))))

(defun qwen-companion-undo--wait-for-agent (paths)
  "Wait until no agent is at work on PATHS; quitting ends that."
  (message "Waiting until the agent is done (C-g to stop)...")
  (while (qwen-companion-journal-reply-busy
          (qwen-companion-journal-await
           'journal-busy (list :paths paths :wait t) 70)))
  (message nil))

;;; Steps

(defun qwen-companion-undo-step-from-reply (root path reply bring-back)
  "Return the step to undo the change of PATH below ROOT in REPLY.
REPLY is the journal's answer with the texts; its files are read and
deleted.  With BRING-BACK non-nil, do the change again instead."
  (let ((before (qwen-companion-journal-take-bytes
                 (qwen-companion-journal-reply-before-file reply)))
        (after (qwen-companion-journal-take-bytes
                (qwen-companion-journal-reply-after-file reply)))
        (before-mode (qwen-companion-journal-reply-before-mode reply))
        (after-mode (qwen-companion-journal-reply-after-mode reply))
        (old (qwen-companion-journal-reply-from reply)))
    (make-qwen-companion-undo-step
     :root root
     :path (if bring-back path (or old path))
     :from (and old (if bring-back old path))
     :base (if bring-back before after)
     :target (if bring-back after before)
     :base-mode (if bring-back before-mode after-mode)
     :target-mode (if bring-back after-mode before-mode)
     :binary (not (and (qwen-companion-undo-text-p before)
                       (qwen-companion-undo-text-p after))))))

(defun qwen-companion-undo-text-p (bytes)
  "Return non-nil when BYTES, a unibyte string or nil, may be a text."
  (or (null bytes)
      (not (string-search "\0" (substring bytes 0 (min 8000 (length bytes)))))
      (string-prefix-p "\xff\xfe" bytes)
      (string-prefix-p "\xfe\xff" bytes)))

(defun qwen-companion-undo-run (list turn label &optional bring-back)
  "Take each step of LIST in order to undo TURN, or to BRING-BACK it.
Tell the journal so; LABEL says what is done.
Return an alist of the files and the outcome for each: `written',
`unsaved' (it is in a buffer that had unsaved text), `conflict' (marked
in a buffer), `same' (there was nothing to do), or a string, the reason
why the file was left as it is."
  (let ((qwen-companion-journal-inhibit t)
        (written nil)
        (results nil))
    (unwind-protect
        (dolist (step list)
          (let* ((path (qwen-companion-undo-step-path step))
                 (from (qwen-companion-undo-step-from step))
                 (result (condition-case err
                             (qwen-companion-undo--take step)
                           ((file-error user-error)
                            (error-message-string err)))))
            (when (memq result '(written unsaved conflict))
              (when from
                (push from written))
              (when (or from (eq result 'written))
                (push path written)))
            (push (cons path result) results)))
      (when written
        (qwen-companion-journal-wrote (nreverse written) turn label bring-back)))
    (nreverse results)))

(defun qwen-companion-undo--take (step)
  "Take STEP and return its result, see `qwen-companion-undo-run'.
Signal an error, having changed nothing, if the file is to be left alone."
  (let ((path (qwen-companion-undo-step-path step))
        (from (qwen-companion-undo-step-from step))
        (renamed nil))
    (qwen-companion-undo--check-place step path)
    (when from
      (qwen-companion-undo--check-place step from))
    (unless (run-hook-with-args-until-failure
             'qwen-companion-disk-catch-up-functions
             (if (and from (file-exists-p from)) from path))
      (user-error "It has just changed on disk; try again in a moment"))
    ;; It may have its name back already.
    (when (and from (or (file-exists-p from) (not (file-exists-p path))))
      (qwen-companion-undo--rename from path)
      (setq renamed t))
    (condition-case err
        (qwen-companion-undo--take-contents step renamed)
      ((file-error user-error)
       (when renamed
         (qwen-companion-undo--rename path from))
       (signal (car err) (cdr err))))))

(defun qwen-companion-undo--take-contents (step renamed)
  "Write the wanted contents to the file of STEP.
RENAMED is non-nil if it has just got its name.  Return what has become
of it, see `qwen-companion-undo-run'."
  (cond
   ((memq 'link (list (qwen-companion-undo-step-base-mode step)
                      (qwen-companion-undo-step-target-mode step)))
    (qwen-companion-undo--take-link step))
   ((null (qwen-companion-undo-step-target step))
    (qwen-companion-undo--delete step))
   (t
    (let* ((result (qwen-companion-undo--take-text step))
           (changed (or (qwen-companion-undo--set-mode step) renamed)))
      (if (and changed (eq result 'same)) 'written result)))))

(defun qwen-companion-undo--check-place (step path)
  "Signal a `user-error' unless STEP may change the file PATH.
Its real directory must be in the real root, and the file no link that
was not there before."
  (let* ((file-name-handler-alist nil)
         (root (file-name-as-directory
                (file-truename (qwen-companion-undo-step-root step))))
         (directory (file-name-as-directory
                     (file-truename (file-name-directory path)))))
    (unless (string-prefix-p root directory)
      (user-error "Its directory leads out of the project"))
    (when (member ".git" (cons (file-name-nondirectory path)
                               (split-string (substring directory (length root)) "/")))
      (user-error "It belongs to git"))
    (when (and (file-symlink-p path)
               (not (eq 'link (qwen-companion-undo-step-base-mode step))))
      (user-error "It is a symbolic link now"))
    (when (file-directory-p path)
      (user-error "There is a directory of that name now"))))

(defun qwen-companion-undo--rename (from path)
  "Rename the file FROM to PATH, and let its buffer visit it there."
  (cond
   ((not (file-exists-p from))
    (user-error "%s is not there any more" (qwen-companion-untrusted-path from)))
   ((file-exists-p path)
    (user-error "%s is in the way" (qwen-companion-untrusted-path path)))
   (t
    (let ((buffer (find-buffer-visiting from))
          (other (find-buffer-visiting path)))
      (when (and other (buffer-modified-p other))
        (user-error "%s has unsaved text" (buffer-name other)))
      (make-directory (file-name-directory path) t)
      (rename-file from path)
      (when (and buffer (not other))
        (with-current-buffer buffer
          (set-visited-file-name path t t)))))))

(defun qwen-companion-undo--bytes (path)
  "Return the bytes of the file PATH, a unibyte string, or nil without one."
  (let ((file-name-handler-alist nil))
    (when (file-exists-p path)
      (with-temp-buffer
        (set-buffer-multibyte nil)
        (insert-file-contents-literally path)
        (buffer-string)))))

;;; Files that no buffer visits

(defun qwen-companion-undo--take-text (step)
  "Bring the file of STEP, or its buffer, to its target."
  (let* ((path (qwen-companion-undo-step-path step))
         (target (qwen-companion-undo-step-target step))
         (buffer (find-buffer-visiting path))
         (bytes (qwen-companion-undo--bytes path)))
    (when (and bytes (not (file-writable-p path)))
      (user-error "It is read-only on disk"))
    (cond
     ((equal bytes target)
      (if (and buffer (buffer-modified-p buffer)
               (not (qwen-companion-undo-step-binary step)))
          (qwen-companion-undo--change-buffer step buffer)
        'same))
     ((and buffer bytes (not (qwen-companion-undo-step-binary step)))
      (qwen-companion-undo--change-buffer step buffer))
     ((and buffer (buffer-modified-p buffer))
      (user-error "%s has unsaved text" (buffer-name buffer)))
     ((equal bytes (qwen-companion-undo-step-base step))
      (qwen-companion-undo--write path target)
      (when buffer
        (qwen-companion-undo--reread buffer path))
      'written)
     ((null bytes)
      (user-error "It is not there any more"))
     ((qwen-companion-undo-step-binary step)
      (user-error "It is no text and has changed since"))
     (t
      (qwen-companion-undo--merge-bytes step bytes)))))

(defun qwen-companion-undo--merge-bytes (step bytes)
  "Merge the change of STEP into its file, which has BYTES and is unvisited.
Return what has become of it."
  (let* ((path (qwen-companion-undo-step-path step))
         (coding (qwen-companion-undo-lossless-coding bytes))
         (decode (lambda (bytes) (decode-coding-string (or bytes "") coding t)))
         (theirs (funcall decode (qwen-companion-undo-step-target step)))
         (merged (qwen-companion-undo--merge
                  (funcall decode (qwen-companion-undo-step-base step))
                  (funcall decode bytes) theirs)))
    (if (> (qwen-companion-merge-result-conflicts merged) 0)
        (progn
          (qwen-companion-merge-take-text merged theirs)
          (qwen-companion-undo--change-buffer
           step (let ((enable-local-variables :safe))
                  (find-file-noselect path t))))
      (let ((text (qwen-companion-merge-take-text merged theirs)))
        (unless (equal bytes (qwen-companion-undo--bytes path))
          (user-error "It has just changed on disk; try again in a moment"))
        (qwen-companion-undo--write path (encode-coding-string text coding t))
        'written))))

(defun qwen-companion-undo-lossless-coding (bytes)
  "Return a coding system by which BYTES can be decoded and encoded again.
A line feed in them is one in the text."
  (let ((coding (cond ((string-prefix-p "\xff\xfe" bytes) 'utf-16le-with-signature-unix)
                      ((string-prefix-p "\xfe\xff" bytes) 'utf-16be-with-signature-unix))))
    (if (and coding
             (equal bytes (encode-coding-string
                           (decode-coding-string bytes coding) coding)))
        coding
      'iso-latin-1-unix)))

(defun qwen-companion-undo--write (path bytes)
  "Put BYTES into the file PATH; it is there whole or as it was.
Directories that are missing are made."
  (let* ((file-name-handler-alist nil)
         (coding-system-for-write 'no-conversion)
         (write-region-annotate-functions nil)
         (write-region-post-annotation-function nil)
         (attributes (file-attributes path))
         (temporary nil))
    (make-directory (file-name-directory path) t)
    (if (and attributes (> (file-attribute-link-number attributes) 1))
        ;; All names of the file are to have the new text.
        (write-region bytes nil path nil 'silent)
      (unwind-protect
          (progn
            (setq temporary (make-temp-file
                             (expand-file-name ".qwen-companion-"
                                               (file-name-directory path))))
            (write-region bytes nil temporary nil 'silent)
            (if attributes
                (progn
                  (set-file-modes temporary (file-modes path))
                  (ignore-errors
                    (set-file-extended-attributes
                     temporary (file-extended-attributes path))))
              (set-file-modes temporary (default-file-modes)))
            (rename-file temporary path t)
            (setq temporary nil))
        (when temporary
          (delete-file temporary))))))

(defun qwen-companion-undo--reread (buffer path)
  "Let BUFFER, which has no unsaved text, have the contents of the file PATH."
  (unless (and (run-hook-with-args-until-failure
                'qwen-companion-disk-catch-up-functions path)
               (verify-visited-file-modtime buffer))
    (with-current-buffer buffer
      (revert-buffer t t t))))

(defun qwen-companion-undo--set-mode (step)
  "Make the file of STEP executable or not if that is a part of STEP.
Return non-nil if its mode has changed."
  (let ((path (qwen-companion-undo-step-path step))
        (base (qwen-companion-undo-step-base-mode step))
        (target (qwen-companion-undo-step-target-mode step)))
    (unless (or (null target) (null base) (eq base target) (not (file-exists-p path)))
      (let ((modes (if (eq target 'executable)
                       ;; All users who may read it may run it.
                       (logior (file-modes path) (ash (logand (file-modes path) #o444) -2))
                     (logand (file-modes path) #o666))))
        (unless (= modes (file-modes path))
          (set-file-modes path modes)
          t)))))

(defun qwen-companion-undo--delete (step)
  "Delete the file of STEP if its contents are as expected.
By `delete-by-moving-to-trash', it goes to the trash."
  (let* ((path (qwen-companion-undo-step-path step))
         (buffer (find-buffer-visiting path)))
    (cond
     ((not (file-exists-p path)) 'same)
     ((and buffer (buffer-modified-p buffer))
      (user-error "%s has unsaved text" (buffer-name buffer)))
     ((not (equal (qwen-companion-undo--bytes path)
                  (qwen-companion-undo-step-base step)))
      (user-error "It has other changes too, so it is not deleted"))
     (t
      (delete-file path t)
      'written))))

(defun qwen-companion-undo--take-link (step)
  "Make, change or remove the symbolic link of STEP.
Signal a `user-error' if something else is in its place now."
  (let* ((path (qwen-companion-undo-step-path step))
         (target (qwen-companion-undo-step-target step))
         (present (file-symlink-p path))
         (bytes (if present
                    (encode-coding-string present (or file-name-coding-system
                                                      default-file-name-coding-system
                                                      'utf-8-unix))
                  (qwen-companion-undo--bytes path))))
    (unless (and (equal bytes (qwen-companion-undo-step-base step))
                 (eq (and present t)
                     (eq 'link (qwen-companion-undo-step-base-mode step))))
      (user-error "It has other changes too"))
    (when bytes
      (delete-file path))
    (pcase (qwen-companion-undo-step-target-mode step)
      ('link (make-directory (file-name-directory path) t)
             (make-symbolic-link (decode-coding-string
                                  target (or file-name-coding-system
                                             default-file-name-coding-system
                                             'utf-8-unix))
                                 path))
      ('nil nil)
      (_ (qwen-companion-undo--write path target)
         (qwen-companion-undo--set-mode step)))
    'written))

;;; Buffers

(defun qwen-companion-undo--change-buffer (step buffer)
  "Merge the change of STEP into BUFFER, which visits its file.
Save it if it had no unsaved text.  Return what has become of it."
  (with-current-buffer (or (buffer-base-buffer buffer) buffer)
    (when (qwen-companion-conflicts-p)
      (user-error "%s has conflicts that are not resolved" (buffer-name)))
    (unless (verify-visited-file-modtime)
      ;; Nobody follows the file: saving would ask.
      (if (buffer-modified-p)
          (user-error "%s has unsaved text, and its file has changed too" (buffer-name))
        (revert-buffer t t t)))
    (let* ((modified (buffer-modified-p))
           (coding (or buffer-file-coding-system 'utf-8-unix))
           (decode (lambda (bytes)
                     (decode-coding-string (or bytes "") coding)))
           (mine (qwen-companion-disk-text (current-buffer) "\n"))
           (base (funcall decode (qwen-companion-undo-step-base step)))
           (theirs (funcall decode (qwen-companion-undo-step-target step)))
           (merged (qwen-companion-undo--merge
                    (unless (equal base mine) base) (current-buffer) theirs))
           (conflicts (qwen-companion-merge-result-conflicts merged)))
      (cond
       ((zerop (length (qwen-companion-merge-result-edits merged)))
        (qwen-companion-merge-take-text merged theirs)
        'same)
       (t
        (qwen-companion-merge-apply merged theirs)
        (cond
         ((> conflicts 0)
          (qwen-companion-conflicts-begin nil nil nil)
          'conflict)
         (modified 'unsaved)
         (t
          (qwen-companion-disk-save)
          'written)))))))

(defun qwen-companion-undo--merge (base mine theirs)
  "Return the merge of THEIRS, a string, into MINE.
It is as in `qwen-companion-merge-texts'.  BASE is a string, or nil for
that of MINE.  Wait for it, and signal a `user-error' if it cannot be
made."
  (let ((end (+ (float-time) qwen-companion-undo--limit))
        (waiting t)
        merged)
    (qwen-companion-merge-texts
     base mine theirs qwen-companion-conflicts-undo-labels
     (lambda (result)
       (if (eq waiting t)
           (setq merged result waiting nil)
         (when (and result (qwen-companion-merge-result-text-buffer result))
           (kill-buffer (qwen-companion-merge-result-text-buffer result))))))
    (unwind-protect
        (while (and waiting (< (float-time) end))
          (accept-process-output nil 0.05))
      (when waiting
        (setq waiting 'given-up)))
    (or merged
        (user-error "The texts cannot be merged; see M-x qwen-companion-log"))))

(provide 'qwen-companion-undo)
;;; qwen-companion-undo.el ends here
