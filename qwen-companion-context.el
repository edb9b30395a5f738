;;; qwen-companion-context.el --- What the user looks at  -*- lexical-binding: t; -*-

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

;; Keeps the Python process informed about the files the user works on,
;; where point is, what is selected, and which projects are open.
;;
;; Nothing runs per command.  An idle timer of 50 ms takes a snapshot once
;; per pause; moves that come without input (a new client frame, a window
;; changed by Lisp) are caught by hooks that arm a timer of the same
;; length.  A snapshot that equals the one before costs a comparison and is
;; not sent.

;;; Code:

(require 'cl-lib)
(require 'project)
(require 'qwen-companion-backend)

(defconst qwen-companion-context--delay 0.05
  "Seconds without a change after which a snapshot is taken.")

(defconst qwen-companion-context--selection-limit 16384
  "Most characters of a selection that are copied; no CLI takes more.")

(defconst qwen-companion-context--file-limit 50
  "Most files that are reported.
More than a CLI takes, because those that are not on disk are left out
later.")

(defvar qwen-companion-context--idle-timer nil)
(defvar qwen-companion-context--one-shot nil
  "Timer armed by a hook, nil when none is waiting.")
(defvar qwen-companion-context--changes 0
  "Counter of what a comparison of positions cannot see: files, projects.")
(defvar qwen-companion-context--focused nil
  "The files that had the focus, newest first: (BUFFER . MILLISECONDS).")
(defvar qwen-companion-context--active nil
  "The window that showed the active file last.")
(defvar qwen-companion-context--key nil
  "What the last snapshot depended on; equal means nothing to do.")
(defvar qwen-companion-context--sent nil
  "The payload sent last.")

;;; Positions

(defun qwen-companion-context-line (position)
  "Return the line of POSITION in the whole buffer, 1-based."
  (line-number-at-pos position t))

(defun qwen-companion-context-character (position)
  "Return the column of POSITION, 1-based, in UTF-16 code units.
A tab is one unit, a character outside the Basic Multilingual Plane two."
  (save-excursion
    (save-restriction
      (widen)
      (goto-char position)
      (let* ((start (let ((inhibit-field-text-motion t))
                      (line-beginning-position)))
             (characters (- position start)))
        (1+ (if (= characters (- (position-bytes position)
                                 (position-bytes start)))
                ;; All ASCII: nothing to look for, however long the line.
                characters
              (goto-char start)
              (let ((case-fold-search nil))
                (while (re-search-forward "[\U00010000-\U0010FFFF]" position t)
                  (setq characters (1+ characters))))
              characters))))))

;;; Files and focus

(defun qwen-companion-context--milliseconds (&optional time)
  "Return TIME, now by default, as milliseconds since the epoch."
  (floor (* 1000 (float-time time))))

(defun qwen-companion-context--file-buffer (buffer)
  "Return the buffer that visits the local file BUFFER is about, or nil."
  (let* ((base (or (buffer-base-buffer buffer) buffer))
         (file (buffer-file-name base)))
    (and file (not (file-remote-p file)) base)))

(defun qwen-companion-context-frame-p ()
  "Return non-nil when the selected frame is one a user can see.
The first frame of a daemon is not."
  (not (equal (terminal-name) "initial_terminal")))

(defun qwen-companion-context--note-focus ()
  "Note the file in the selected window, if there is one."
  (let* ((window (if (window-minibuffer-p)
                     (minibuffer-selected-window)
                   (selected-window)))
         (buffer (and window (qwen-companion-context--file-buffer
                              (window-buffer window)))))
    (when buffer
      (setq qwen-companion-context--active window)
      (unless (eq buffer (caar qwen-companion-context--focused))
        (setq qwen-companion-context--focused
              (cons (cons buffer (qwen-companion-context--milliseconds))
                    (assq-delete-all buffer qwen-companion-context--focused)))
        (cl-incf qwen-companion-context--changes)))))

(defun qwen-companion-context--adopt-open-files ()
  "Take over the files that had the focus before the mode was on."
  (setq qwen-companion-context--focused
        (cl-loop for buffer in (buffer-list)
                 for time = (buffer-local-value 'buffer-display-time buffer)
                 when (and time (qwen-companion-context--file-buffer buffer)
                           (not (buffer-base-buffer buffer)))
                 collect (cons buffer (qwen-companion-context--milliseconds time)))
        qwen-companion-context--focused
        (sort qwen-companion-context--focused
              (lambda (a b) (> (cdr a) (cdr b))))))

(defun qwen-companion-context--active-window (buffer)
  "Return the window whose point counts for the file of BUFFER, or nil."
  (let ((window qwen-companion-context--active))
    (and (window-live-p window)
         (eq (qwen-companion-context--file-buffer (window-buffer window)) buffer)
         window)))

;;; Roots

(defcustom qwen-companion-roots-outside-projects t
  "Whether directories outside any project count as workspace roots.
A CLI connects only if it runs in a workspace root or below one.  With
non-nil, the directory of each open file and terminal that belongs to no
project is one; with nil, only projects are."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-imitate-vscode nil
  "Whether terminals claim to be those of VS Code.
Gemini CLI 0.6 and older connect to nothing else.  Sets the variable
TERM_PROGRAM, by which other programs know VS Code too: some then draw
or open files in ways that only it understands."
  :group 'qwen-companion
  :type 'boolean)

(defconst qwen-companion-context--terminal-modes
  '(comint-mode term-mode vterm-mode eshell-mode eat-mode)
  "Modes of buffers in which a CLI may run.")

(defconst qwen-companion-context--slice 0.004
  "Seconds project.el may be asked for roots without a pause.")

(defconst qwen-companion-context--root-age 60
  "Seconds after which a root is looked up again.
A directory may have become a project, or be one no longer.")

(defvar qwen-companion-context--root-of (make-hash-table :test #'equal)
  "What was looked up: directory to (ROOT-OR-NIL . TIME).")
(defvar qwen-companion-context--roots-timer nil
  "Timer that goes on looking for roots, nil when all are known.")
(defvar qwen-companion-context--extra-roots nil
  "Directories in which a CLI was started by command.")
(defvar qwen-companion-context--sent-roots nil
  "The payload that told the roots last, nil before the first time.")
(defvar qwen-companion-context--published nil
  "The answer to it: what the discovery files on disk say.")

(defun qwen-companion-context-root (directory)
  "Return the project root of DIRECTORY as an absolute name, or nil.
The name has no slash at its end.  Remote directories have no root."
  (car (or (qwen-companion-context--known directory)
           (puthash directory
                    (cons (qwen-companion-context--look-up directory)
                          (float-time))
                    qwen-companion-context--root-of))))

(defun qwen-companion-context--look-up (directory)
  "Ask project.el for the root of DIRECTORY; see `qwen-companion-context-root'."
  (unless (file-remote-p directory)
    (when-let ((project (ignore-errors (project-current nil directory))))
      (directory-file-name (expand-file-name (project-root project))))))

(defun qwen-companion-context--known (directory)
  "Return what was looked up for DIRECTORY, nil when that is old or missing."
  (when-let ((known (gethash directory qwen-companion-context--root-of)))
    (when (< (- (float-time) (cdr known)) qwen-companion-context--root-age)
      known)))

(defun qwen-companion-context--root-or-directory (directory)
  "Return the root that stands for DIRECTORY, or nil."
  (when-let ((root (or (qwen-companion-context-root directory)
                       (and qwen-companion-roots-outside-projects
                            (not (file-remote-p directory))
                            (directory-file-name
                             (expand-file-name directory))))))
    (if (qwen-companion-backend-text-p root)
        root
      (qwen-companion-backend-notice-once
       (format "%s is left out: its name is no text in the file system's coding"
               root)))))

(defun qwen-companion-context--directories ()
  "Return the directories whose projects are open."
  (let (directories)
    (dolist (buffer (buffer-list))
      (with-current-buffer buffer
        (when (or buffer-file-name
                  (eq major-mode 'dired-mode)
                  (apply #'derived-mode-p
                         qwen-companion-context--terminal-modes))
          (cl-pushnew default-directory directories :test #'equal))))
    directories))

(defun qwen-companion-context--update-roots ()
  "Send the open roots if they have changed.
Looking up a directory can take long; that is done in slices, and the
roots are sent when all are known."
  (setq qwen-companion-context--roots-timer
        (when qwen-companion-context--roots-timer
          (cancel-timer qwen-companion-context--roots-timer)))
  (let ((end (+ (float-time) qwen-companion-context--slice))
        (directories (qwen-companion-context--directories))
        (roots (copy-sequence qwen-companion-context--extra-roots)))
    (while (and directories
                (or (< (float-time) end)
                    (qwen-companion-context--known (car directories))))
      (when-let ((root (qwen-companion-context--root-or-directory
                        (pop directories))))
        (cl-pushnew root roots :test #'equal)))
    (if directories
        (setq qwen-companion-context--roots-timer
              (run-at-time 0.001 nil #'qwen-companion-context--update-roots))
      (qwen-companion-context--send-roots (sort roots #'string<)))))

(defun qwen-companion-context--send-roots (roots)
  "Send ROOTS unless they are what was sent last."
  (let ((payload (list :roots roots
                       :imitate-vscode qwen-companion-imitate-vscode)))
    (unless (equal payload qwen-companion-context--sent-roots)
      (when (qwen-companion-backend-call 'roots payload)
        (setq qwen-companion-context--sent-roots payload)))))

(defun qwen-companion-context-add-root (directory)
  "Count DIRECTORY, an absolute name without final slash, among the roots."
  (unless (member directory (plist-get qwen-companion-context--sent-roots :roots))
    (cl-pushnew directory qwen-companion-context--extra-roots :test #'equal)
    (qwen-companion-context--update-roots)))

(defun qwen-companion-context-on-published (payload)
  "Note what the discovery files on disk say, from PAYLOAD.
Say so once when no CLI can connect for want of a root."
  (let ((said qwen-companion-context--published))
    (setq qwen-companion-context--published payload)
    (unless (or said (plist-get payload :reachable))
      (qwen-companion-backend-notice
       (qwen-companion-context-unreachable)))))

(defun qwen-companion-context-unreachable ()
  "Return why no CLI can connect, a string, or nil when one can."
  (and qwen-companion-context--published
       (not (plist-get qwen-companion-context--published :reachable))
       (format "no CLI can connect: no %s is open; visit one, or start the CLI with M-x qwen-companion-run"
               (if qwen-companion-roots-outside-projects
                   "file, Dired buffer or terminal"
                 "project"))))

(defun qwen-companion-context-published-p (root)
  "Return non-nil when the discovery files on disk name ROOT."
  (member root (plist-get qwen-companion-context--published :roots)))

;;; Snapshot

(defun qwen-companion-context--point (buffer)
  "Return the position of the cursor in the file of BUFFER."
  (if-let ((window (qwen-companion-context--active-window buffer)))
      (window-point window)
    (with-current-buffer buffer (point))))

(defun qwen-companion-context--region (buffer)
  "Return the selection in BUFFER as (START . END), or nil.
The selection outlives a change of the window, as in the terminal that
shall be asked about it."
  (let ((shown (if-let ((window (qwen-companion-context--active-window buffer)))
                   (window-buffer window)
                 buffer)))
    (with-current-buffer shown
      (when (and transient-mark-mode mark-active (mark t))
        (let ((point (qwen-companion-context--point buffer))
              (mark (mark t)))
          (unless (= point mark)
            (cons (min point mark) (max point mark))))))))

(defun qwen-companion-context--current-key ()
  "Return what a snapshot depends on, to tell whether one is needed."
  (let* ((buffer (caar qwen-companion-context--focused))
         (live (and (buffer-live-p buffer) (qwen-companion-context-frame-p))))
    (list qwen-companion-context--changes
          (and live buffer)
          (and live (qwen-companion-context--point buffer))
          (and live (qwen-companion-context--region buffer))
          (and live (buffer-chars-modified-tick buffer))
          (buffer-local-value 'default-directory (window-buffer)))))

(defun qwen-companion-context--active-payload (buffer)
  "Return the part of a payload that is about the focused file of BUFFER."
  (let ((point (qwen-companion-context--point buffer))
        (region (qwen-companion-context--region buffer)))
    (with-current-buffer buffer
      (save-restriction
        (widen)
        (append
         (list :active buffer-file-name
               :line (qwen-companion-context-line point)
               :character (qwen-companion-context-character point))
         (when region
           (qwen-companion-backend-pack-text
            (buffer-substring-no-properties
             (car region)
             (min (cdr region)
                  (+ (car region)
                     qwen-companion-context--selection-limit))))))))))

(defun qwen-companion-context-payload ()
  "Return the context as a payload for the Python process."
  (setq qwen-companion-context--focused
        (cl-delete-if-not #'buffer-live-p qwen-companion-context--focused
                          :key #'car))
  (let ((active (caar qwen-companion-context--focused)))
    (append
     (list :files
           (cl-loop for (buffer . time) in qwen-companion-context--focused
                    for file = (buffer-file-name buffer)
                    repeat qwen-companion-context--file-limit
                    when file collect (list :path file :timestamp time)))
     (when (and active
                (buffer-file-name active)
                (qwen-companion-context-frame-p))
       (qwen-companion-context--active-payload active)))))

(defun qwen-companion-context--update ()
  "Send a snapshot if something has changed since the last one."
  (setq qwen-companion-context--one-shot nil)
  (when (qwen-companion-context-frame-p)
    (qwen-companion-context--note-focus))
  (let ((key (qwen-companion-context--current-key)))
    (unless (equal key qwen-companion-context--key)
      (let ((moved-only (equal (car key) (car qwen-companion-context--key)))
            (same-place (equal (nth 5 key) (nth 5 qwen-companion-context--key))))
        (setq qwen-companion-context--key key)
        (unless (and moved-only same-place)
          (qwen-companion-context--update-roots))
        (qwen-companion-context--send (qwen-companion-context-payload))))))

(defun qwen-companion-context--send (payload)
  "Send PAYLOAD unless it is what was sent last."
  (unless (equal payload qwen-companion-context--sent)
    (when (qwen-companion-backend-call 'context payload)
      (setq qwen-companion-context--sent payload))))

;;; Triggers

(defun qwen-companion-context--arm (&rest _)
  "Take a snapshot soon: something may have changed without input."
  (unless qwen-companion-context--one-shot
    (setq qwen-companion-context--one-shot
          (run-at-time qwen-companion-context--delay nil
                       #'qwen-companion-context--update))))

(defun qwen-companion-context--files-changed ()
  "Note that a file was opened, closed or renamed."
  (when (or buffer-file-name (derived-mode-p 'dired-mode))
    (cl-incf qwen-companion-context--changes)
    (qwen-companion-context--arm)))

(defun qwen-companion-context--buffers-shown (&rest _)
  "Note the change of a window to another buffer, perhaps of another project."
  (cl-incf qwen-companion-context--changes)
  (qwen-companion-context--arm))

(defconst qwen-companion-context--hooks
  '((window-selection-change-functions . qwen-companion-context--arm)
    (window-buffer-change-functions . qwen-companion-context--buffers-shown)
    (find-file-hook . qwen-companion-context--files-changed)
    (kill-buffer-hook . qwen-companion-context--files-changed)
    (after-set-visited-file-name-hook . qwen-companion-context--files-changed)
    (dired-mode-hook . qwen-companion-context--files-changed)
    (deactivate-mark-hook . qwen-companion-context--arm))
  "The hooks in use while the mode is on: (HOOK . FUNCTION).")

(defun qwen-companion-context-enable ()
  "Begin to report files, cursor, selection and projects."
  (qwen-companion-context--adopt-open-files)
  (pcase-dolist (`(,hook . ,function) qwen-companion-context--hooks)
    (add-hook hook function))
  (setq qwen-companion-context--idle-timer
        (run-with-idle-timer qwen-companion-context--delay t
                             #'qwen-companion-context--update))
  (qwen-companion-context--update-roots))

(defun qwen-companion-context-disable ()
  "Stop watching and forget what was seen."
  (pcase-dolist (`(,hook . ,function) qwen-companion-context--hooks)
    (remove-hook hook function))
  (dolist (timer (list qwen-companion-context--idle-timer
                       qwen-companion-context--one-shot
                       qwen-companion-context--roots-timer))
    (when timer (cancel-timer timer)))
  (clrhash qwen-companion-context--root-of)
  (setq qwen-companion-context--idle-timer nil
        qwen-companion-context--one-shot nil
        qwen-companion-context--roots-timer nil
        qwen-companion-context--changes 0
        qwen-companion-context--focused nil
        qwen-companion-context--active nil
        qwen-companion-context--key nil
        qwen-companion-context--sent nil
        qwen-companion-context--extra-roots nil
        qwen-companion-context--sent-roots nil
        qwen-companion-context--published nil))

(defun qwen-companion-context-resend ()
  "Tell a Python process that has just come up everything anew."
  (setq qwen-companion-context--sent-roots nil
        qwen-companion-context--sent nil)
  (qwen-companion-context--update-roots)
  (when (qwen-companion-context-frame-p)
    (qwen-companion-context--note-focus))
  (qwen-companion-context--send (qwen-companion-context-payload)))

(provide 'qwen-companion-context)
;;; qwen-companion-context.el ends here
