;;; qwen-companion-context.el --- Report the user's context  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Informs the Python process of the files the user works on, the position of
;; point, the selection, and the open projects.
;;
;; Nothing runs per command.  An idle timer of 50 ms takes a snapshot once per
;; pause.  Moves without input (a new client frame, a window changed by Lisp)
;; run hooks that start a timer of the same length.  A snapshot that equals the
;; previous one is not sent.
;;
;; A "view" is a buffer in which the user works on a file: the one that visits
;; it, an indirect one, or an Org edit buffer.  Positions are sent as positions
;; in the file, selections as text of the view.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-privacy)
(require 'qwen-companion-roots)
(require 'qwen-companion-timers)

(autoload 'qwen-companion-evil-region "qwen-companion-evil")

(declare-function apply-on-rectangle "rect" (function start end &rest args))
(declare-function extract-rectangle-line "rect" (startcol endcol lines))

(defvar org-src--beg-marker)
(defvar org-src--end-marker)

(defconst qwen-companion-context--delay 0.05
  "Seconds without a change after which a snapshot is taken.")

(defconst qwen-companion-context--selection-limit 16384
  "Most characters of a selection that are copied; CLIs accept no more.
CLIs count UTF-16 units: the text is cut again when it is encoded for
them.")

(defconst qwen-companion-context--file-limit 50
  "Most files that are reported.
CLIs accept fewer, but files that are not on disk are left out later.")

(defvar qwen-companion-context--idle-timer nil)
(defvar qwen-companion-context--one-shot nil
  "Timer armed by a hook, nil when none is waiting.")
(defvar qwen-companion-context--changes 0
  "Counter of changes that a comparison of positions misses: files, projects.")
(defvar qwen-companion-context--focused nil
  "The focused files, newest first: (BUFFER . MILLISECONDS).")
(defvar qwen-companion-context--active nil
  "The last view in which the user worked on a file: (WINDOW VIEW BUFFER), or nil.
BUFFER visits the file.")
(defvar qwen-companion-context--left nil
  "State of the text when the user left the last file, nil while they are in it.
The value is a `buffer-chars-modified-tick' of the view.")
(defvar qwen-companion-context--key nil
  "The inputs of the last snapshot; a snapshot with equal inputs is skipped.")
(defvar qwen-companion-context--sent nil
  "The payload sent last.")

;;; Positions

(defun qwen-companion-context-line (position)
  "Return the line of POSITION in the whole buffer, 1-based."
  ;; `line-number-at-pos' rejects positions outside of the narrowing.
  (save-restriction
    (widen)
    (line-number-at-pos position)))

(defun qwen-companion-context-character (position)
  "Return the column of POSITION, 1-based, in UTF-16 code units.
A tab is one unit, a character outside the Basic Multilingual Plane two,
a line end none, even where the carriage return is in the buffer."
  (qwen-companion-buffers-widened
    (goto-char position)
    (when (and (eolp) (eq (char-before) ?\r))
      (backward-char))
    (let ((start (let ((inhibit-field-text-motion t))
                   (line-beginning-position))))
      (1+ (qwen-companion-context--utf16-length start (point))))))

(defun qwen-companion-context--utf16-length (start end)
  "Return the number of UTF-16 code units between START and END.
The line may be a megabyte long, so this does not look at each character."
  (let* ((characters (- end start))
         (more-bytes (- (position-bytes end) (position-bytes start) characters))
         (case-fold-search nil))
    (save-excursion
      (goto-char start)
      (cond
       ((zerop more-bytes) characters)
       ;; The rest consists of characters of one byte, and of four, which have
       ;; two units.
       ((not (re-search-forward "[\u0080-\uFFFF]" end t))
        (+ characters (/ more-bytes 3)))
       (t
        (goto-char start)
        (while (re-search-forward "[\U00010000-\U0010FFFF]+" end t)
          (cl-incf characters (- (match-end 0) (match-beginning 0))))
        characters)))))

;;; Files and focus

(defun qwen-companion-context--milliseconds (&optional time)
  "Return TIME, now by default, as milliseconds since the epoch."
  (floor (* 1000 (float-time time))))

(defun qwen-companion-context--org-marker (buffer)
  "Return the start of the text that BUFFER edits for Org, a marker, or nil."
  (when (boundp 'org-src--beg-marker)
    (let ((marker (buffer-local-value 'org-src--beg-marker buffer)))
      (and (markerp marker) (marker-buffer marker) marker))))

(defun qwen-companion-context--file-buffer (view)
  "Return the buffer that visits the file of VIEW, or nil."
  (let* ((marker (qwen-companion-context--org-marker view))
         (buffer (if marker (marker-buffer marker) view))
         (base (or (buffer-base-buffer buffer) buffer)))
    (and (buffer-file-name base) base)))

(defun qwen-companion-context-frame-p (&optional frame)
  "Return non-nil if FRAME is visible to a user.
The first frame of a daemon is not.  FRAME is the selected one by default."
  (not (equal (terminal-name frame) "initial_terminal")))

(defun qwen-companion-context--note-focus ()
  "Note the file in the selected window, or that the user has left it."
  (let* ((window (if (window-minibuffer-p)
                     (minibuffer-selected-window)
                   (selected-window)))
         (view (and window (window-buffer window)))
         (buffer (and view (qwen-companion-context--file-buffer view))))
    (if (not buffer)
        (unless qwen-companion-context--left
          (when-let* ((last (qwen-companion-context--last-view)))
            (setq qwen-companion-context--left
                  (buffer-chars-modified-tick last))))
      (setq qwen-companion-context--active (list window view buffer)
            qwen-companion-context--left nil)
      (unless (eq buffer (caar qwen-companion-context--focused))
        (setq qwen-companion-context--focused
              (cons (cons buffer (qwen-companion-context--milliseconds))
                    (assq-delete-all buffer qwen-companion-context--focused)))
        (cl-incf qwen-companion-context--changes)))))

(defun qwen-companion-context--adopt-open-files ()
  "Note the files that were focused before the mode was turned on."
  (setq qwen-companion-context--focused
        (cl-loop for buffer in (buffer-list)
                 for time = (buffer-local-value 'buffer-display-time buffer)
                 when (and time
                           (eq buffer (qwen-companion-context--file-buffer buffer)))
                 collect (cons buffer (qwen-companion-context--milliseconds time)))
        qwen-companion-context--focused
        (sort qwen-companion-context--focused
              (lambda (a b) (> (cdr a) (cdr b))))))

(defun qwen-companion-context--last-view ()
  "Return the last view of the focused file, or nil."
  (let ((buffer (caar qwen-companion-context--focused)))
    (when (buffer-live-p buffer)
      (pcase-let ((`(,_ ,view ,visiting) qwen-companion-context--active))
        (if (and (eq visiting buffer) (buffer-live-p view))
            view
          buffer)))))

(defun qwen-companion-context--window (view)
  "Return the last window of VIEW, or nil.
Return nil, too, if that window shows another buffer now."
  (let ((window (car qwen-companion-context--active)))
    (and (window-live-p window)
         (eq (window-buffer window) view)
         window)))

(defun qwen-companion-context-unsaved-p ()
  "Return non-nil if the file in focus has unsaved text.
This is fast enough for the mode line."
  (when-let* ((view (qwen-companion-context--last-view)))
    (or (buffer-modified-p view)
        (buffer-modified-p (caar qwen-companion-context--focused)))))

(defun qwen-companion-context-sent ()
  "Return the payload sent last, see `qwen-companion-context-payload', or nil."
  qwen-companion-context--sent)

(defun qwen-companion-context-active-file ()
  "Return the buffer of the file in focus, nil when there is none."
  (let ((buffer (caar qwen-companion-context--focused)))
    (and (buffer-live-p buffer) (qwen-companion-context-frame-p) buffer)))

;;; Snapshot

(defun qwen-companion-context--point (view)
  "Return the position of the cursor in VIEW."
  (if-let* ((window (qwen-companion-context--window view)))
      (window-point window)
    (with-current-buffer view (point))))

(defun qwen-companion-context--file-position (view position)
  "Return the position in the buffer of the file for POSITION in VIEW."
  (if (not (qwen-companion-context--org-marker view))
      position
    (with-current-buffer view
      (qwen-companion-buffers-widened
        (goto-char position)
        (qwen-companion-context--org-position
         (1- (line-number-at-pos)) (- (line-end-position) position)
         org-src--beg-marker org-src--end-marker)))))

(defun qwen-companion-context--org-position (lines left start end)
  "Return a position in the text between the markers START and END.
It is LINES below the first and LEFT characters before the line's end.
Org removes indentation, commas and colons from the starts of lines, so
only the ends of lines are the same in its edit buffers."
  (with-current-buffer (marker-buffer start)
    (qwen-companion-buffers-widened
      (goto-char end)
      (let ((last (if (bolp) (1- end) end)))
        (goto-char start)
        (forward-line lines)
        (max start
             (min last
                  (max (line-beginning-position)
                       (- (line-end-position) left))))))))

(defun qwen-companion-context-region (view)
  "Return the selection in VIEW as (START END EACH-LINE CORNER), or nil.
EACH-LINE is nil or, if a rectangle is selected, a function like
`apply-on-rectangle'; CORNER distinguishes rectangles with the same START
and END.  The selection is kept when another window is selected, such as
the terminal in which the user asks about it."
  (when (memql qwen-companion-context--left
               (list nil (buffer-chars-modified-tick view)))
    (let ((point (qwen-companion-context--point view))
          (window (qwen-companion-context--window view)))
      (with-current-buffer view
        (save-excursion
          (goto-char point)
          (pcase-let ((`(,start ,end ,each-line)
                       (or (and (bound-and-true-p evil-local-mode)
                                (qwen-companion-evil-region))
                           (and (use-region-p)
                                (list (region-beginning) (region-end)
                                      (and (bound-and-true-p rectangle-mark-mode)
                                           #'qwen-companion-context--each-line))))))
            (unless (eql start end)
              (goto-char start)
              (if (and each-line (> end (line-end-position)))
                  (list start end each-line
                        (window-parameter window 'rectangle--point-crutches))
                (list start end nil nil)))))))))

(defun qwen-companion-context--region-text (view region)
  "Return the text of REGION in VIEW, plain and cut."
  (pcase-let* ((`(,start ,end ,each-line) region)
               (limit qwen-companion-context--selection-limit)
               (text (with-current-buffer view
                       (if each-line
                           (qwen-companion-context--rectangle
                            start end each-line limit)
                         (buffer-substring-no-properties
                          start (min end (+ start limit)))))))
    (unless (multibyte-string-p text)
      (setq text (decode-coding-string text 'utf-8-unix t)))
    (replace-regexp-in-string qwen-companion-backend-not-unicode "\uFFFD"
                              text t t)))

(defun qwen-companion-context-marked (file)
  "Return the number of selected characters in FILE, including those not sent.
Return nil without a selection, or for a rectangle."
  (when-let* ((view (qwen-companion-context--last-view))
              (region (and (equal file (buffer-file-name
                                        (caar qwen-companion-context--focused)))
                           (qwen-companion-context-region view))))
    (pcase-let ((`(,start ,end ,each-line) region))
      (unless each-line (- end start)))))

(defun qwen-companion-context-selection-full-p (text)
  "Return non-nil if TEXT, a selection, is as long as CLIs accept."
  ;; One less if the next character has two units.
  (<= (1- qwen-companion-context--selection-limit)
      (/ (string-bytes (encode-coding-string text 'utf-16le)) 2)))

(defun qwen-companion-context--each-line (function start end)
  "Call FUNCTION with the columns of each line of a rectangle.
START and END are the positions of its corners.  Select the window
meanwhile: only it knows corners beyond the ends of lines."
  (save-excursion
    (with-selected-window (or (qwen-companion-context--window (current-buffer))
                              (selected-window))
      (apply-on-rectangle function start end))))

(defun qwen-companion-context--rectangle (start end each-line limit)
  "Return the lines of a rectangle as one string of at most LIMIT columns.
START, END and EACH-LINE are as in `qwen-companion-context-region'."
  (let ((room limit)
        lines)
    (catch 'full
      (funcall each-line
               (lambda (left right)
                 (let ((line (list nil)))
                   (when (= left right)
                     (throw 'full nil))
                   (extract-rectangle-line left (min right (+ left room)) line)
                   (push (substring-no-properties (cadr line)) lines)
                   (cl-decf room (1+ (- right left)))
                   (unless (> room 0)
                     (throw 'full nil))))
               start end))
    (string-join (nreverse lines) "\n")))

(defun qwen-companion-context--current-key ()
  "Return a key for the current state; equal keys need no new snapshot."
  (let ((view (and (qwen-companion-context-frame-p)
                   (qwen-companion-context--last-view))))
    (list qwen-companion-context--changes
          (buffer-local-value 'default-directory (window-buffer))
          (qwen-companion-context-unsaved-p)
          view
          (and view (qwen-companion-context--point view))
          (and view (qwen-companion-context-region view))
          (and view (buffer-chars-modified-tick view))
          ;; It differs from the view's only in an Org edit buffer.
          (and view (buffer-chars-modified-tick
                     (caar qwen-companion-context--focused))))))

(defun qwen-companion-context--active-payload (buffer)
  "Return the part of a payload about the focused file, visited in BUFFER."
  (let* ((view (qwen-companion-context--last-view))
         (region (qwen-companion-context-region view))
         (position (qwen-companion-context--file-position
                    view (qwen-companion-context--point view))))
    (with-current-buffer buffer
      (append
       (list :active buffer-file-name
             :line (qwen-companion-context-line position)
             :character (qwen-companion-context-character position))
       (when region
         ;; Despite its length: a move of point must not read the disk.
         (list :text (qwen-companion-context--region-text view region)))))))

(defun qwen-companion-context-payload ()
  "Return the context as a payload for the Python process."
  (setq qwen-companion-context--focused
        (cl-delete-if-not (lambda (buffer)
                            (and (buffer-live-p buffer)
                                 (qwen-companion-context--file-buffer buffer)))
                          qwen-companion-context--focused
                          :key #'car))
  (let ((active (caar qwen-companion-context--focused)))
    (append
     (list :files
           (cl-loop for (buffer . time) in qwen-companion-context--focused
                    for file = (buffer-file-name buffer)
                    for exposure = (qwen-companion-privacy-exposure buffer)
                    repeat qwen-companion-context--file-limit
                    when (qwen-companion-backend-unicode-p file)
                    collect (append (list :path file :timestamp time)
                                    (and exposure (list :exposure exposure)))))
     (when (and active
                (qwen-companion-context-frame-p)
                (qwen-companion-backend-unicode-p (buffer-file-name active)))
       (if (qwen-companion-privacy-secret-p active)
           (list :active (buffer-file-name active))
         (qwen-companion-context--active-payload active))))))

(defun qwen-companion-context--update ()
  "Send a snapshot if something has changed since the last one."
  (setq qwen-companion-context--one-shot nil)
  (qwen-companion-timers-check)
  (qwen-companion-privacy-update)
  (when (qwen-companion-context-frame-p)
    (qwen-companion-context--note-focus))
  (let ((key (qwen-companion-context--current-key)))
    (unless (equal key qwen-companion-context--key)
      (pcase-let ((`(,changes ,directory ,unsaved) qwen-companion-context--key))
        (setq qwen-companion-context--key key)
        (unless (and (equal changes (nth 0 key)) (equal directory (nth 1 key)))
          (qwen-companion-roots-update))
        (unless (eq unsaved (nth 2 key))
          (force-mode-line-update t))
        (qwen-companion-context--send (qwen-companion-context-payload))))))

(defun qwen-companion-context--send (payload)
  "Send PAYLOAD unless it equals the one sent last."
  (setq qwen-companion-context--sent
        (qwen-companion-backend-call-if-changed
         'context payload qwen-companion-context--sent)))

;;; Triggers

(defun qwen-companion-context--arm (&rest _)
  "Take a snapshot soon: something may have changed without input."
  (unless qwen-companion-context--one-shot
    (setq qwen-companion-context--one-shot
          (run-at-time qwen-companion-context--delay nil
                       #'qwen-companion-context--update))))

(defun qwen-companion-context--files-changed ()
  "Note that a file was opened, closed or renamed."
  (when (or buffer-file-name
            (derived-mode-p 'dired-mode)
            ;; It no longer visits its file.
            (assq (current-buffer) qwen-companion-context--focused))
    (cl-incf qwen-companion-context--changes)
    (qwen-companion-context--arm)))

(defun qwen-companion-context--saved ()
  "Send the context again: the file may be new on disk."
  (setq qwen-companion-context--sent nil)
  (qwen-companion-context--files-changed))

(defun qwen-companion-context--focus-moved (&rest _)
  "Note the selected window at once, as the user may leave it soon."
  (when (qwen-companion-context-frame-p)
    (qwen-companion-context--note-focus))
  (qwen-companion-context--arm))

(defun qwen-companion-context--buffers-shown (&rest _)
  "Note the change of a window to another buffer, perhaps of another project."
  (cl-incf qwen-companion-context--changes)
  (qwen-companion-context--focus-moved))

(defconst qwen-companion-context--hooks
  '((window-selection-change-functions . qwen-companion-context--focus-moved)
    (window-buffer-change-functions . qwen-companion-context--buffers-shown)
    (find-file-hook . qwen-companion-context--files-changed)
    (after-save-hook . qwen-companion-context--saved)
    (kill-buffer-hook . qwen-companion-context--files-changed)
    (after-set-visited-file-name-hook . qwen-companion-context--files-changed)
    (dired-mode-hook . qwen-companion-context--files-changed)
    (qwen-companion-privacy-changed-hook . qwen-companion-context--files-changed)
    (deactivate-mark-hook . qwen-companion-context--arm))
  "The hooks in use while the mode is on: (HOOK . FUNCTION).")

(defun qwen-companion-context-enable ()
  "Start reporting files, cursor, selection and projects."
  (qwen-companion-context--adopt-open-files)
  (qwen-companion-buffers-set-hooks qwen-companion-context--hooks t)
  (setq qwen-companion-context--idle-timer
        (run-with-idle-timer qwen-companion-context--delay t
                             #'qwen-companion-context--update))
  (qwen-companion-roots-update-soon))

(defun qwen-companion-context-disable ()
  "Stop reporting and forget the state."
  (qwen-companion-buffers-set-hooks qwen-companion-context--hooks nil)
  (qwen-companion-timers-cancel qwen-companion-context--idle-timer
                                qwen-companion-context--one-shot)
  (qwen-companion-roots-forget)
  (qwen-companion-privacy-forget)
  (setq qwen-companion-context--changes 0
        qwen-companion-context--focused nil
        qwen-companion-context--active nil
        qwen-companion-context--left nil
        qwen-companion-context--key nil
        qwen-companion-context--sent nil))

(defun qwen-companion-context-resend ()
  "Send everything to a new Python process."
  (setq qwen-companion-context--sent nil)
  (qwen-companion-privacy-forget)
  (qwen-companion-privacy-update)
  (qwen-companion-roots-resend)
  (when (qwen-companion-context-frame-p)
    (qwen-companion-context--note-focus))
  (qwen-companion-context--send (qwen-companion-context-payload)))

(provide 'qwen-companion-context)
;;; qwen-companion-context.el ends here
