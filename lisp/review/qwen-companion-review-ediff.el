;;; qwen-companion-review-ediff.el --- Reviews with Ediff  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The front end that shows a proposal in Ediff.  Variant A is the text on
;; disk, B the proposal, and C, on demand, a copy of the user's unsaved text.
;;
;; This file lays out the windows instead of Ediff, so that the selected
;; window (usually the terminal) stays where it is.  That needs no advice and
;; changes no user option: Ediff keeps a layout that is in order, and a hook
;; local to the control panel puts it in order first.

;;; Code:

(require 'cl-lib)
(require 'color)
(require 'diff-mode)
(require 'ediff)
(require 'ediff-util)
(require 'ediff-wind)
(require 'face-remap)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-compare)
(require 'qwen-companion-proposal)
(require 'qwen-companion-review)
(require 'qwen-companion-review-windows)
(require 'qwen-companion-untrusted)

(defcustom qwen-companion-ediff-layout 'auto
  "How to lay out the two sides of a review.
`auto' means side by side in a frame that is wide enough, else stacked.
In the control panel of a review, the key | changes it."
  :group 'qwen-companion
  :type '(choice (const :tag "As the frame allows" auto)
                 (const :tag "Side by side" side-by-side)
                 (const :tag "Stacked" stacked)))

(defcustom qwen-companion-ediff-control 'window
  "Where to show the control panel of a review.
`window': below the two sides.  `frame': on a graphical display, in a
frame of its own with the parameters of `ediff-control-frame-parameters'."
  :group 'qwen-companion
  :type '(choice (const :tag "In a window below the sides" window)
                 (const :tag "In a frame of its own" frame)))

(defconst qwen-companion-review-ediff--least-lines 8
  "Minimum height in lines of each side for a review to begin in Ediff.
In a smaller frame it begins hunk by hunk; TAB still shows Ediff.")

(defconst qwen-companion-review-ediff--side-width 60
  "Minimum width in columns of each of two sides side by side.")

;;; Keys and help

(defvar qwen-companion-review-ediff--keys
  '("q" qwen-companion-diff-bury
    "z" qwen-companion-diff-bury
    "TAB" qwen-companion-diff-switch
    "e" qwen-companion-diff-edit
    [remap ediff-copy-A-to-B] qwen-companion-review-ediff-drop
    [remap ediff-copy-C-to-B] qwen-companion-review-ediff-copy-unsaved
    [remap ediff-restore-diff] qwen-companion-review-ediff-restore
    "C-c C-c" qwen-companion-diff-accept
    "C-c C-n" qwen-companion-diff-accept-next
    "M-n" qwen-companion-review
    "]" qwen-companion-review
    "M-p" qwen-companion-review-previous
    "[" qwen-companion-review-previous
    "C-c C-k" qwen-companion-diff-reject
    "u" qwen-companion-diff-show-unsaved
    "C-c C-u" qwen-companion-diff-show-unsaved
    "C-c C-l" qwen-companion-diff-toggle-line-ends
    "C-c C-w" qwen-companion-diff-show-warnings)
  "Keys added to the control panel, see `qwen-companion-buffers-keymap'.")

(defun qwen-companion-review-ediff--key (command)
  "Return the key of COMMAND in the control panel, as text."
  (cl-loop for (key bound) on qwen-companion-review-ediff--keys by #'cddr
           when (eq bound command) return key))

(defun qwen-companion-review-ediff--change (command)
  "Call COMMAND of Ediff and let it change the proposal, which is read-only."
  (qwen-companion-buffers-require-mode 'ediff-mode)
  (unless (or current-prefix-arg
              (< -1 ediff-current-difference ediff-number-of-differences))
    (user-error "Not on a change; move to one first"))
  (cl-letf (((buffer-local-value 'buffer-read-only ediff-buffer-B) nil))
    (call-interactively command)))

(defun qwen-companion-review-ediff-drop ()
  "Drop the current change: copy the text on disk to the proposal."
  (interactive nil ediff-mode)
  (qwen-companion-review-ediff--change #'ediff-copy-A-to-B))

(defun qwen-companion-review-ediff-copy-unsaved ()
  "Copy your unsaved text of the current change to the proposal."
  (interactive nil ediff-mode)
  (qwen-companion-review-ediff--change #'ediff-copy-C-to-B))

(defun qwen-companion-review-ediff-restore ()
  "Restore the current change, which was dropped, in the proposal."
  (interactive nil ediff-mode)
  (qwen-companion-review-ediff--change #'ediff-restore-diff))

(defun qwen-companion-review-ediff--unsaved-help ()
  "Return the key for unsaved text with its label, or nil without such text."
  (cond
   ((qwen-companion-proposal-unsaved-copy qwen-companion-proposal-current)
    '("u" . "without your text"))
   ((qwen-companion-proposal-unsaved qwen-companion-proposal-current)
    '("u" . "your unsaved text"))))

(defun qwen-companion-review-ediff--long-unsaved-help ()
  "Return the line about unsaved text in the long help, or an empty string."
  (cond
   ((qwen-companion-proposal-unsaved-copy qwen-companion-proposal-current)
    "  u -hide your unsaved text (C)   `cb' copies your change to B\n")
   ((qwen-companion-proposal-unsaved qwen-companion-proposal-current)
    "  u -show your unsaved text as a third side\n")
   (t "")))

(defun qwen-companion-review-ediff--brief-help (&optional key-hint)
  "Return the help shown in the control panel, in lines that fit its window.
It begins with KEY-HINT, the key that goes there, if that is non-nil."
  (let ((column 0) (width (window-width)) parts)
    (pcase-dolist (`(,keys . ,label)
                   (delq nil
                         `(,(and key-hint (cons key-hint "goes here, then"))
                           (qwen-companion-diff-accept . "accept")
                           (qwen-companion-diff-reject . "reject")
                           (qwen-companion-diff-bury . "put aside")
                           ,(qwen-companion-review-ediff--unsaved-help)
                           ("n/p" . "next/previous change")
                           ,(unless ediff-3way-job '("a" . "drop the change"))
                           (qwen-companion-diff-edit . "edit")
                           (qwen-companion-diff-switch . "hunk by hunk") ("?" . "all keys"))))
      (let ((part (concat (propertize (if (symbolp keys)
                                          (qwen-companion-review-ediff--key keys)
                                        keys) 'face 'help-key-binding) " " label)))
        (cond ((= column 0))
              ((< (+ column 3 (length part)) width)
               (push "   " parts)
               (cl-incf column 3))
              (t (push "\n" parts)
                 (setq column 0)))
        (push part parts)
        (cl-incf column (length part))))
    (apply #'concat (nreverse parts))))

(defun qwen-companion-review-ediff--long-help ()
  "Return Ediff's help preceded by our keys."
  (concat
   "  C-c C-c -accept the proposal (B) as it is now   C-c C-k -reject it   q -put it aside\n"
   (qwen-companion-review-ediff--long-unsaved-help)
   (if ediff-3way-job
       "  e -edit B   `ab' copies the current change from the disk (A) to B: dropped\n"
     "  e -edit B   a -copies the current change from the disk (A) to B: dropped\n")
   "  TAB -the same in one buffer, hunk by hunk   ]/[ -next/previous review   C-c C-n -accept, and next\n"
   "  C-c C-w -show all warnings of the header line\n"
   ediff-long-help-message-head
   (if ediff-3way-job
       ediff-long-help-message-compare3
     ediff-long-help-message-compare2)
   ediff-long-help-message-tail))

;;; Windows of a review

(defun qwen-companion-review-ediff--panel-height (window)
  "Return the height in lines of a control panel split off WINDOW."
  (let ((height (window-total-height window)))
    (if ediff-use-long-help-message
        (min (- height qwen-companion-review-windows-tight-height)
             (+ 3 (cl-count ?\n (qwen-companion-review-ediff--long-help))))
      (max 3 (min 4 (/ height 4))))))

(defun qwen-companion-review-ediff--panel-window (window view)
  "Return a window for the control panel of VIEW.
Split it off WINDOW, or make it in a frame of its own."
  (if (and (eq qwen-companion-ediff-control 'frame)
           (display-graphic-p (window-frame window)))
      (let ((frame (qwen-companion-review-windows-view-panel-frame view)))
        (unless (frame-live-p frame)
          (setq frame (qwen-companion-review-ediff--make-panel-frame
                       (window-frame window)))
          (setf (qwen-companion-review-windows-view-panel-frame view) frame))
        (set-frame-height frame (if ediff-use-long-help-message
                                    (+ 4 (cl-count ?\n (qwen-companion-review-ediff--long-help)))
                                  4))
        (frame-root-window frame))
    (split-window window
                  (- (qwen-companion-review-ediff--panel-height window))
                  'below)))

(defun qwen-companion-review-ediff--make-panel-frame (frame)
  "Make a frame for a control panel on the display of FRAME.
It takes no focus, and has a minibuffer of its own: FRAME could not be
deleted otherwise."
  (with-selected-frame frame
    (make-frame `((name . "Review")
                  (minibuffer . t)
                  (no-focus-on-map . t)
                  ;; Ediff's parameters make it invisible at first.
                  (visibility . t)
                  (width . ,(+ 2 (apply #'max
                                        (mapcar #'length
                                                (split-string
                                                 (qwen-companion-review-ediff--brief-help)
                                                 "\n")))))
                  (height . 4)
                  ,@ediff-control-frame-parameters))))

(defun qwen-companion-review-ediff--split (window parts split)
  "Split WINDOW into PARTS, two or three; return the windows in order.
SPLIT is the function to use if there is room."
  (let* ((vertically (eq split #'split-window-vertically))
         (size (/ (if vertically
                      (window-total-height window)
                    (window-total-width window))
                  parts))
         (rest (with-selected-window window
                 (condition-case nil
                     (funcall split size)
                   ;; The window is too small.
                   (error (if vertically
                              (split-window-horizontally)
                            (split-window-vertically)))))))
    (cons window
          (if (= parts 2)
              (list rest)
            (qwen-companion-review-ediff--split rest (1- parts) split)))))

(defun qwen-companion-review-ediff--layout ()
  "Lay out the windows of the review of the current control panel.
Do nothing when they are in order."
  (unless (ediff-keep-window-config (current-buffer))
    (let* ((control (current-buffer))
           (proposal qwen-companion-proposal-current)
           (view (qwen-companion-proposal-view proposal))
           (window-min-height 1)
           (window-combination-resize nil)
           (sides (delq nil (list ediff-buffer-A ediff-buffer-B
                                  (and ediff-3way-job ediff-buffer-C))))
           (split ediff-split-window-function)
           (area (qwen-companion-review-windows-make-room view))
           (panel (qwen-companion-review-ediff--panel-window area view))
           (windows (qwen-companion-review-ediff--split
                     area (length sides) split)))
      (cl-mapc #'qwen-companion-review-windows-show-buffer windows sides)
      (qwen-companion-review-windows-show-buffer panel control)
      ;; Deleting its window may have changed the current buffer.
      (set-buffer control)
      (setq ediff-multiframe nil
            ediff-window-A (nth 0 windows)
            ediff-window-B (nth 1 windows)
            ediff-window-C (nth 2 windows)
            ediff-control-window panel)
      (set-window-scroll-bars panel 0 nil 0 nil)
      ;; Ediff resets the buffer-local one again and again.
      (set-window-parameter panel 'mode-line-format
                            '(:eval (qwen-companion-review-ediff--panel-mode-line)))
      (select-window panel)
      (qwen-companion-review-ediff--draw-panel control))))

(defun qwen-companion-review-ediff--draw-panel (control)
  "Draw the control panel, the buffer CONTROL, in the selected window.
Unlike Ediff, do not centre the lines."
  (ediff-setup-control-buffer control)
  (let ((modified (buffer-modified-p))
        (inhibit-read-only t))
    (indent-rigidly (point-min) (point-max)
                    (- (save-excursion
                         (goto-char (point-min))
                         (current-indentation))))
    (set-buffer-modified-p modified))
  (qwen-companion-review-ediff--show-key-hint control))

(defun qwen-companion-review-ediff--show-key-hint (control)
  "Show in CONTROL, a control panel, the key to it while the user is elsewhere."
  (with-current-buffer control
    (remove-overlays nil nil 'qwen-companion-review-ediff t)
    (when-let* ((key-hint (qwen-companion-review-key-hint))
                (window (get-buffer-window control t))
                (overlay (make-overlay (point-min) (point-max))))
      (overlay-put overlay 'qwen-companion-review-ediff t)
      (overlay-put overlay 'display
                   (with-selected-window window
                     (qwen-companion-review-ediff--brief-help key-hint))))))

(cl-defmethod qwen-companion-review-selection-changed ((_style (eql 'ediff)) proposal)
  "Update the keys shown in the control panel of PROPOSAL."
  (when-let* ((control (qwen-companion-review-windows-control proposal)))
    (qwen-companion-review-ediff--show-key-hint control)))

(defun qwen-companion-review-ediff--panel-mode-line ()
  "Return the mode line of the control panel: file and place."
  (qwen-companion-untrusted-mode-line
   (format " Review in Ediff: %s, %s"
           (qwen-companion-review-file qwen-companion-proposal-current)
           (cond ((not (numberp ediff-number-of-differences)) "comparing")
                 ((= ediff-number-of-differences 0) "no difference")
                 ((< ediff-current-difference 0) "before the first change")
                 ((>= ediff-current-difference ediff-number-of-differences)
                  "after the last change")
                 (t (format "change %d of %d" (1+ ediff-current-difference)
                            ediff-number-of-differences))))))

;;; Colours

(defconst qwen-companion-review-ediff--faces
  '((ediff-buffer-A diff-removed diff-refine-removed)
    (ediff-buffer-B diff-added diff-refine-added)
    (ediff-buffer-C diff-changed diff-refine-changed))
  "Faces of each variant: of its changes, and of the current change.")

(defun qwen-companion-review-ediff--current-face (soft strong)
  "Return the attributes of the current change, between SOFT and STRONG.
These are faces; STRONG is meant for words, and too strong for whole lines."
  (let ((light (color-name-to-rgb (or (face-background soft nil t) "")))
        (full (color-name-to-rgb (or (face-background strong nil t) ""))))
    (if (and light full (>= (display-color-cells) 256))
        (list :inherit soft :extend t
              :background (apply #'color-rgb-to-hex
                                 (append (cl-mapcar (lambda (a b) (/ (+ a b) 2))
                                                    light full)
                                         '(2))))
      ;; With few colours STRONG inverts those of the text; use those of SOFT.
      (list :inherit (list strong soft) :extend t))))

(defun qwen-companion-review-ediff--set-colours ()
  "Show the sides of the current control panel in the colours of a diff.
Ediff would show all changes but the current one as grey stripes."
  (pcase-dolist (`(,variant ,soft ,strong) qwen-companion-review-ediff--faces)
    (when-let* ((buffer (symbol-value variant))
                ((buffer-live-p buffer)))
      (let ((letter (substring (symbol-name variant) -1)))
        (with-current-buffer buffer
          (pcase-dolist (`(,kind . ,face)
                         `(("even" :inherit ,soft :extend t)
                           ("odd" :inherit ,soft :extend t)
                           ("current" . ,(qwen-companion-review-ediff--current-face
                                          soft strong))))
            (face-remap-set-base (intern (format "ediff-%s-diff-%s" kind letter)) face))
          (face-remap-set-base (intern (format "ediff-fine-diff-%s" letter))
                               (list :inherit (if (< (display-color-cells) 256)
                                                  (list strong soft)
                                                strong)
                                     :weight 'bold :underline t)))))))

;;; Session

(defun qwen-companion-review-ediff--split-function (frame sides)
  "Return the function that splits a window of FRAME for SIDES, a number."
  (if (pcase qwen-companion-ediff-layout
        ('side-by-side t)
        ('stacked nil)
        (_ (>= (window-total-width (frame-root-window frame))
               (* sides qwen-companion-review-ediff--side-width))))
      #'split-window-horizontally
    #'split-window-vertically))

(defun qwen-companion-review-ediff--set-up-control (proposal)
  "Set up the current buffer, a new control panel, for PROPOSAL."
  (setq qwen-companion-proposal-current proposal)
  (setf (qwen-companion-review-windows-view-control
         (qwen-companion-proposal-view proposal))
        (current-buffer))
  (setq-local ediff-window-setup-function #'ediff-setup-windows-plain
              ediff-split-window-function
              (qwen-companion-review-ediff--split-function
               (selected-frame)
               (if (qwen-companion-proposal-unsaved-copy proposal) 3 2))
              ediff-brief-help-message-function
              #'qwen-companion-review-ediff--brief-help
              ediff-long-help-message-function
              #'qwen-companion-review-ediff--long-help
              ;; Do not move the mouse.
              ediff-grab-mouse nil
              ;; Do not report an empty side of a change.
              ediff-verbose-p nil
              word-wrap t)
  (add-hook 'ediff-before-setup-windows-hook
            #'qwen-companion-review-ediff--layout nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-review-ediff--control-killed nil t))

(defun qwen-companion-review-ediff--started ()
  "Finish the start of a session; the control panel is current."
  (setq ediff-keep-variants t)
  (when ediff-3way-job
    ;; Ediff has made it writable, as for a merge.
    (with-current-buffer ediff-buffer-C
      (setq buffer-read-only t)))
  ;; Not in Ediff's own keymap.
  (use-local-map (apply #'qwen-companion-buffers-keymap
                        :parent (current-local-map) qwen-companion-review-ediff--keys))
  (qwen-companion-review-ediff--set-colours)
  (when (> ediff-number-of-differences 0)
    (ediff-next-difference)))

(defun qwen-companion-review-ediff--control-killed ()
  "Put the review aside because its control panel is being killed."
  (setq ediff-session-registry
        (delq (current-buffer) ediff-session-registry))
  (qwen-companion-review-windows-control-killed))

(defun qwen-companion-review-ediff--attempt (proposal function)
  "Call FUNCTION, which has Ediff compare the texts of PROPOSAL.
If Ediff fails, restore the windows, delete its buffers and files, and
signal its error."
  (let ((windows (current-window-configuration))
        ;; The backend deletes it, also when Emacs is killed.
        (temporary-file-directory (qwen-companion-backend-spool)))
    (condition-case err
        (qwen-companion-compare-with-ediff
         (delq nil (list (qwen-companion-proposal-disk-buffer proposal)
                         (qwen-companion-proposal-buffer proposal)
                         (qwen-companion-proposal-unsaved-copy proposal)))
         function
         (qwen-companion-review-windows-control proposal))
      (error
       (qwen-companion-review-windows-set-configuration windows)
       (signal (car err) (cdr err))))))

(defun qwen-companion-review-ediff--start (proposal)
  "Start an Ediff session for PROPOSAL in the selected frame.
Signal an error if Ediff cannot compare the texts."
  (let* ((control nil)
         (ediff-mode-hook
          (cons (lambda ()
                  (setq control (current-buffer))
                  (qwen-companion-review-ediff--set-up-control proposal))
                ediff-mode-hook))
         (disk (qwen-companion-proposal-disk-buffer proposal))
         (buffer (qwen-companion-proposal-buffer proposal))
         (yours (qwen-companion-proposal-unsaved-copy proposal))
         (startup (list #'qwen-companion-review-ediff--started)))
    (unwind-protect
        (qwen-companion-review-ediff--attempt
         proposal
         (lambda ()
           (if yours
               (ediff-buffers3 disk buffer yours startup)
             (ediff-buffers disk buffer startup))))
      ;; Timers and processes run in Ediff, and one may end the proposal.
      (when (and (buffer-live-p control)
                 (not (qwen-companion-proposal-open-p proposal)))
        (kill-buffer control)))))

(cl-defmethod qwen-companion-review-fits-p ((_style (eql 'ediff)) proposal select)
  "Return non-nil when Ediff has room for both sides of PROPOSAL.
SELECT is as in `qwen-companion-review-show'."
  (let* ((frame (qwen-companion-review-windows-frame proposal))
         (height (qwen-companion-review-windows-height proposal frame select))
         (panel (max 3 (min 4 (/ height 4))))
         (stacked (if (eq #'split-window-vertically
                          (qwen-companion-review-ediff--split-function frame 2))
                      2
                    1)))
    ;; Each side has a mode line and a header line.
    (>= (- (/ (- height panel) stacked) 2) qwen-companion-review-ediff--least-lines)))

(defun qwen-companion-review-ediff--compared-p (control)
  "Return non-nil when Ediff has compared the texts of CONTROL.
It cannot draw its control panel before that."
  (numberp (buffer-local-value 'ediff-number-of-differences control)))

(cl-defmethod qwen-companion-review-show ((_style (eql 'ediff)) proposal select)
  "Show PROPOSAL in Ediff; SELECT non-nil means to select the review."
  (let* ((frame (qwen-companion-review-windows-frame proposal select))
         (selected (selected-window))
         (shown (window-buffer selected))
         (control (qwen-companion-review-windows-control proposal)))
    (setf (qwen-companion-proposal-view proposal)
          (qwen-companion-review-windows-new-view proposal frame select))
    (with-selected-frame frame
      (if control
          (with-current-buffer control
            (ediff-recenter 'no-rehighlight))
        (qwen-companion-review-ediff--start proposal)))
    (qwen-companion-review-windows-select proposal select selected shown)))

(defun qwen-companion-review-ediff--quit (control frame)
  "End the Ediff session of CONTROL without changing the windows of FRAME."
  (let* ((frame (if (frame-live-p frame) frame (selected-frame)))
         (before (current-window-configuration frame))
         ;; BEFORE lacks the point of the selected window.
         (selected (frame-selected-window frame))
         (point (window-point selected)))
    (with-selected-window (frame-first-window frame)
      (with-current-buffer control
        ;; Ediff would move the mouse if the control panel is gone.
        (cl-letf (((default-value 'ediff-grab-mouse) nil))
          (condition-case nil
              (ediff-really-quit nil)
            ;; Ediff did not start completely, or a user's hook failed.
            (error nil))))
      (when (buffer-live-p control)
        (kill-buffer control)))
    (when (frame-live-p frame)
      (qwen-companion-review-windows-set-configuration before)
      ;; The control panel's frame is dead.
      (when (window-live-p selected)
        (set-window-point selected point)))))

(cl-defmethod qwen-companion-review-hide ((_style (eql 'ediff)) proposal)
  "End the Ediff session of PROPOSAL and restore the windows.
Windows in which the user has shown other buffers since stay."
  (qwen-companion-review-windows-restore proposal)
  (when-let* ((control (qwen-companion-review-windows-control proposal)))
    (qwen-companion-review-ediff--quit
     control
     (qwen-companion-review-windows-view-frame (qwen-companion-proposal-view proposal))))
  (qwen-companion-review-windows-forget-view proposal))

(cl-defmethod qwen-companion-review-update-sides ((_style (eql 'ediff)) proposal)
  "Restart Ediff with two or three sides of PROPOSAL in the same place.
The selected part of the review stays selected."
  (let* ((view (qwen-companion-proposal-view proposal))
         (frame (qwen-companion-review-windows-view-frame view))
         (control (qwen-companion-review-windows-control proposal))
         (selected (selected-window))
         (buffer (window-buffer selected)))
    ;; So that killing it does not put the review aside.
    (setf (qwen-companion-review-windows-view-control view) nil)
    (qwen-companion-review-ediff--quit control frame)
    (condition-case err
        (with-selected-frame frame
          (qwen-companion-review-ediff--start proposal))
      (error (qwen-companion-review-fall-back proposal err (eq buffer control))))
    (when-let* ((window (cond
                         ((eq buffer control)
                          (get-buffer-window
                           (qwen-companion-review-windows-control proposal) t))
                         ((and (window-live-p selected)
                               (eq buffer (window-buffer selected)))
                          selected)
                         ((get-buffer-window buffer frame)))))
      (select-window window))))

(cl-defmethod qwen-companion-review-unsaved-changed ((_style (eql 'ediff)) proposal)
  "Update the help about unsaved text in the control panel of PROPOSAL."
  (when-let* ((control (qwen-companion-review-windows-control proposal))
              ((qwen-companion-review-ediff--compared-p control))
              (window (get-buffer-window control t)))
    (with-selected-window window
      (let ((inhibit-read-only t))
        (qwen-companion-review-ediff--draw-panel control)))))

(cl-defmethod qwen-companion-review-refresh ((_style (eql 'ediff)) proposal)
  "Have Ediff compare the sides of PROPOSAL again if they are on the screen."
  (when-let* ((control (qwen-companion-review-windows-control proposal))
              ((qwen-companion-review-ediff--compared-p control))
              ((qwen-companion-review-visible-p 'ediff proposal)))
    (let ((selected (selected-window)))
      (condition-case err
          (save-current-buffer
            ;; Ediff expects the window of its control panel to be selected.
            (if-let* ((window (get-buffer-window control t)))
                (select-window window 'norecord)
              (set-buffer control))
            (qwen-companion-review-ediff--attempt proposal #'ediff-update-diffs))
        (error
         (qwen-companion-review-fall-back
          proposal err (eq control (window-buffer selected)))))
      (when (window-live-p selected)
        (select-window selected)))))

(provide 'qwen-companion-review-ediff)
;;; qwen-companion-review-ediff.el ends here
